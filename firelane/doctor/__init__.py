"""The machine's hardware and its rates: the limits that every benchmark is held against."""
