"""What ``envsuite new`` writes, under the name ``errand``."""
