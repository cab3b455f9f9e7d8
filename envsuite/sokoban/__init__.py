"""``Sokoban-v0``: boxes to push onto targets, in built-in, generated and Boxoban's levels."""
