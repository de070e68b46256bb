"""Readers: from the bytes of one file to pages of text, a format each, archives and tables among them."""
