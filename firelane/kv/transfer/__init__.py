"""Pages that travel between engines by their names. Pull only: whoever needs pages copies them from an engine
that has them, so that nobody else ever writes into an engine's memory.

A pull never has to succeed: what does not come, or not in time, or is not what it was said to be, is
computed.
"""
