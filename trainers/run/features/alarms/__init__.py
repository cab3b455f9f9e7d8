"""Signs of a collapse: the rules, the watch over a run's metrics, and what is done about an alarm."""
