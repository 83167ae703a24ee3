"""Custom tools: their input is one text, which may have to match a grammar."""
