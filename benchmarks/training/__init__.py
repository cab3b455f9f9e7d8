"""What a training step costs: ours, padded batches, TRL and PrefixGrouper on the same recorded episodes."""
