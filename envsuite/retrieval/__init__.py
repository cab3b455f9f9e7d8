"""Search in texts: Lucene's analysis and ranking (BM25) in this process, without Java."""
