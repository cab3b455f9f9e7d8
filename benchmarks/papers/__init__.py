"""docs/papers.md, and the plans of the papers' runs that it shows."""
