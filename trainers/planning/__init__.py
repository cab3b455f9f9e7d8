"""From the settings of a run and its hardware: what fits into memory, and how long an iteration may take."""
