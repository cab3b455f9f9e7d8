"""Policy losses, KL, aggregation; reward shapers."""
