"""Measure environments: steps and resets a second, memory, start-up."""
