"""Forgetting documents: which ones are meant, which models saw them, and taking what holds them out of the store.

What stays are the models and their figures, with the manifests that lead back to what is gone, and tombstones by which
no ingestion brings the documents back.
"""
