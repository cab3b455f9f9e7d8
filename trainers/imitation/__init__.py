"""Imitation: a base model from expert play."""
