"""Classic games as environments of one tool: short examples, each with a solver and dials."""
