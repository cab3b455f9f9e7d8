"""SearchQA: questions of several hops, answered by searching."""
