"""Lineage: where models, data sets, completions and documents come from, and what was made from them."""
