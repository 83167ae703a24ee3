"""Limits of rendering a conversation."""

CPU_S = 1.0
MEMORY_BYTES = 384 << 20
"""Bytes of the process that renders, its own code included."""
MAX_CHARS = 16 << 20
"""Characters of a rendered text, at most."""
TOO_MUCH_WORK = "the chat template does too much work on these messages"
