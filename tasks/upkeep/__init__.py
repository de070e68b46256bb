"""Upkeep of a home: its status, forgetting documents, garbage collection and verification."""
