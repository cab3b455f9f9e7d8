"""What a run can switch on besides its loop: each feature in a folder, what excludes each other in ``table.py``."""
