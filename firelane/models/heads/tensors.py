"""Names of a head's tensors, which makers publish under several."""

from __future__ import annotations

from collections.abc import Collection

from firelane.errors import CheckpointError

PREFIXES = ("", "model.")


class HeadTensors:
    """Looks names up in a checkpoint, with and without `model.` before them."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)

    def get(self, *stems: str) -> str:
        """The first of these that tensors' names begin with, as they are there, without a dot behind it; ""
        where there is none."""
        for stem in stems:
            for prefix in PREFIXES:
                found = f"{prefix}{stem}"
                if any(name.startswith(f"{found}.") for name in self._names):
                    return found
        return ""

    def find(self, *stems: str) -> str:
        """The same. Raises CheckpointError where there is none."""
        found = self.get(*stems)
        if not found:
            raise CheckpointError(f"the head has no tensor {' or '.join(stems)}: fetch it again")
        return found

    def whole(self, name: str) -> str:
        """The tensor of exactly this name, as it is there; "" where there is none."""
        return next((p + name for p in PREFIXES if p + name in self._names), "")

    def left_out(self, *stems: str) -> tuple[str, ...]:
        """Beginnings of names for Program.left_out."""
        return tuple(prefix + stem for stem in stems for prefix in PREFIXES)
