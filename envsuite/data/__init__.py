"""Locates, fetches, checks and builds data."""
