"""Bifurcation-v0: walks past forks whose difficulties are dials, and whose values are known."""
