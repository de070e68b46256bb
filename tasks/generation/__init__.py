"""Batch generation: a file of prompts becomes a table of completions, with finish reasons and log-probabilities.

prompts    what people write: text, JSON Lines, CSV or Parquet, and a template that puts columns together
stage      prompts are cut into shards, each of which is one artefact; all of them joined are the generation
preview    the first completions, as Markdown
page       the same as a page, with every token shaded by how sure the model was of it
"""
