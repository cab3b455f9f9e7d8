"""Paper search: a literature, tools to search it and to follow its citations."""
