"""Tracing: which training text a text shares long runs of words with.

    anchors         short runs of words of a segment's documents, sorted, so that a text's own can be looked up
    trace_index     the stage that keeps the anchors of one segment
    spans           from anchors to maximal shared spans, verified against the documents
    sources         the texts that a model was trained on, found through lineage, and where its documents come from
    echoes          how much of a table of completions stands in training text
    gram_overlap    which runs of words of an evaluation set stand in one segment
    contamination   how much of each evaluation document stands in training text

Words are those of deduplication (`tasks.text.words`): case, punctuation and white space make no difference.
"""
