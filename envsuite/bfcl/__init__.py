"""``BFCL-v0``: the multi-turn conversations of the Berkeley Function Calling Leaderboard, by the package's own code."""
