"""Lineage: sources of models, datasets, completions and documents, and the artefacts made from them."""
