"""Forward pass of a network for one prompt, step by step: a page for people, and JSON for machines."""
