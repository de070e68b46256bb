"""Batch generation: a file of prompts becomes a table of completions, with finish reasons and log-probabilities.

prompt_files   what people write: text, JSON Lines, CSV or Parquet, and a template that puts columns together
shards         how a list of prompts is cut up
prompts        the stage that keeps one shard of prompts
completions    what a model makes of prompts
complete       the stage that continues one shard
generate       the stage that joins the completions of all shards
page           the completions as a page, with every token shaded by how sure the model was of it
preview        the first of them, as Markdown
"""
