"""Coverage-guided fuzzing of all that reads what strangers write. docs/testing.md says how to run it."""
