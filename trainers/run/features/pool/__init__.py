"""A run's datapool: what is played goes into it, or what is trained on comes out of it."""
