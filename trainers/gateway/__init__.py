"""An address for agents with a loop of their own: they talk to the engine, and their requests become steps."""
