"""Demonstrations: episodes of a player, with all that a trainer of language models needs to imitate them."""
