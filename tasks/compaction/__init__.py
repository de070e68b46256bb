"""Compaction: many small segments become few, and nothing that was made from them is made again.

A corpus that grows a little every night has a segment for every night, and each costs a look in every stage of every
run. Here small segments are joined, with the texts, measures and token shards that belong to them; what the rows say
does not change, so neither do the digests, and nothing downstream is computed anew.
"""
