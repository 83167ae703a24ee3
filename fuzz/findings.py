"""Crashes of one target, kept as files: the smallest input for each place in the code."""

from __future__ import annotations

import hashlib
import traceback
from pathlib import Path

MOST_PLACES = 50


class Findings:
    """Inputs go to `folder`, each beside a text that says what it did."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sizes: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._sizes)

    def add(self, error: Exception, data: bytes) -> None:
        """Keep an input, unless a smaller one is known that fails at the same place."""
        place = place_of(error)
        known = self._sizes.get(place)
        if (known is None and len(self) >= MOST_PLACES) or (known is not None and known <= len(data)):
            return
        self._sizes[place] = len(data)
        self._folder.mkdir(parents=True, exist_ok=True)
        name = hashlib.sha256(place.encode()).hexdigest()[:12]
        (self._folder / name).write_bytes(data)
        text = "".join(traceback.format_exception(error))
        (self._folder / f"{name}.txt").write_text(f"{place}\n\n{text}", errors="replace")


def place_of(error: Exception) -> str:
    """The kind of the error, and the last line of our own code on the way to it."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        frame for frame in frames if "/firelane/" in frame.filename and "site-packages" not in frame.filename
    ]
    last = (own or frames)[-1] if frames else None
    where = f"{Path(last.filename).name}:{last.lineno}" if last is not None else "nowhere"
    return f"{type(error).__name__} at {where}"
