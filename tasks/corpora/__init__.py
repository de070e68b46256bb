"""Corpora that come from elsewhere or go elsewhere: documents in Parquet and JSON Lines, tokens as lists."""
