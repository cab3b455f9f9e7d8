"""ALFWorld: household tasks in text, on TextWorld games."""
