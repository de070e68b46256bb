"""Batch generation: a file of prompts becomes a table of completions, with finish reasons and log-probabilities.

prompts        files of prompts and templates, their shards, and the stage that keeps one
completions    a prompt, the template that puts it together, and what a model makes of it
generate       the stages that continue one shard and join the completions of all
"""
