"""Readers: from the bytes of one file to pages of text, one module per family of formats."""
