"""Seeing an evaluation, and two of them side by side: the pages, their summaries, and the figures that they show.

figures, collect        what is known of one evaluation, and where it is read
page, sections, charts  the report of one evaluation
words, summary          what to look at first; the same in a few lines of Markdown
pairs, pair_page        two models on the same documents
texts                   documents and completions as both pages show them
"""
