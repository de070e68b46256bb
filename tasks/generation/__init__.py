"""Batch generation: a file of prompts becomes a table of completions, with finish reasons and log-probabilities.

prompts        files of prompts and templates, their shards, and the stage that keeps one
completions    a prompt, the template that puts it together, and what a model makes of it
complete       the stage that continues one shard
generate       the stage that joins the completions of all shards
"""
