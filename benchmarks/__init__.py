"""Side-by-side measurements against peers; nothing in here is imported by the product."""
