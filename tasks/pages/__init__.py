"""What the pages about corpora and datasets share: drawings, wording, rules of style, Markdown."""
