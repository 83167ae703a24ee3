"""From what a user types to a directory with a model's files."""
