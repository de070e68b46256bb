"""Upkeep of a home: status, garbage collection, verification, compaction, and forgetting documents."""
