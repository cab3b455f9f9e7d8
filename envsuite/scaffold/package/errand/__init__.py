"""``Errand-v0``: an environment for envsuite."""
