"""Trackers of experiments, which show a run's metrics."""
