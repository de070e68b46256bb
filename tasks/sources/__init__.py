"""Sources of documents: addresses, walks, repositories, buckets, and digests of what was found."""
