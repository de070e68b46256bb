"""Tracing: which training text a text shares long runs of words with.

    anchors         short runs of words of a segment's documents, sorted, so that a text's own can be looked up
    index           the stage that keeps the anchors of one segment
    spans           from anchors to maximal shared spans, verified against the documents
    sources         the texts that a model was trained on, found through lineage, and where its documents come from
    echoes          how much of a table of completions stands in training text
    contamination   how much of each evaluation document does

Words are those of deduplication (`tasks.curate.dedup.words`): case, punctuation and white space make no difference.
"""
