"""Episodes: who plays them, the loop that does, and the record of each step."""
