"""Observation to chat messages, completion to tool calls."""
