"""Tokenisers, token shards and training sequences."""
