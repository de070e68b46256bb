"""Batch generation: a file of prompts becomes a table of completions, with finish reasons and log-probabilities."""
