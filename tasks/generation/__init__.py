"""Batch generation: a file of prompts becomes a table of completions, with finish reasons and log-probabilities.

template       one prompt, and the template that puts it together from columns
prompts        files of prompts and templates, their shards, and the stage that keeps one
completions    what a model makes of prompts
complete       the stage that continues one shard
generate       the stage that joins the completions of all shards
"""
