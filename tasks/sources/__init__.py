"""Sources of documents: addresses, recursive listings of folders, git repositories and buckets, and content digests."""
