"""Files that hold documents: archives and tables."""
