"""What generates tokens, and the manager that runs episodes."""
