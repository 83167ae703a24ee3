"""The version of an engine's frames, as the gateway compares it."""

from __future__ import annotations

from firelane.wire.frames import PROTOCOL_VERSION, Ready


def protocol_problem(ready: Ready) -> str:
    """The reason why no frames can be exchanged with this engine; "" where they can."""
    if ready.protocol == PROTOCOL_VERSION:
        return ""
    return (
        f"the engine speaks protocol {ready.protocol}, this gateway {PROTOCOL_VERSION}: install the same "
        "version of Firelane for both"
    )
