"""What a network does with one prompt, as a page for people and as JSON for machines."""
