"""``BabyAI-v0``: the worlds of the package ``minigrid`` in text."""
