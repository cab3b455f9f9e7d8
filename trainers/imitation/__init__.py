"""Imitation: a base model from the play of others."""
