"""Upkeep of a home: its status, forgetting documents, garbage collection, compaction and verification."""
