"""From documents to training sequences: tokenisers, token shards, spans."""
