"""Where documents come from: addresses, walks, repositories, buckets, and digests of what was found."""
