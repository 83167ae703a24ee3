"""What this machine has and what it can do: the limits that every benchmark is held against."""
