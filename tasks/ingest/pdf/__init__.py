"""Text from PDFs: the text layer where it can be read, else the picture of the page."""
