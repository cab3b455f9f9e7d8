"""Episodes that start at steps of others: trees, and continuations that measure a step's value."""
