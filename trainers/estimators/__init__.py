"""Credit-assignment methods, one file each."""
