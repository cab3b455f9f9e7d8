"""vLLM as an engine: servers that sample, the weights they are given, and the proof that they have them."""
