"""The policy: model, log-probabilities, packing."""
