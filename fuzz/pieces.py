"""Inputs in pieces: what is read of them must not depend on where they were cut."""

from __future__ import annotations

from typing import TypeVar

TextT = TypeVar("TextT", bytes, str)


def pieces(data: TextT, size: int) -> list[TextT]:
    return [data[at : at + size] for at in range(0, len(data), size)]
