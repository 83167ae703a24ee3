"""The residual stream of a decoder under construction, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass, field

from firelane.program.values import Value


@dataclass(frozen=True)
class Streams:
    """The values that enter the layers, None of a layer that has read nothing so far, then what leaves the
    last one."""

    values: list[Value | None] = field(default_factory=list[Value | None])

    def begin(self, layers: int) -> None:
        """So many layers are to come."""
        self.values.extend([None] * layers)

    def enter(self, layer: int, x: Value) -> None:
        """The layer reads x: the stream, if it is the first that it reads."""
        if layer < len(self.values) and self.values[layer] is None:
            self.values[layer] = x

    def leave(self, x: Value) -> None:
        """The last layer has ended with x."""
        self.values.append(x)

    def known(self) -> tuple[Value, ...]:
        """All of them, for Program.streams; a layer that reads nothing leaves the stream as it is."""
        found: list[Value] = []
        for value in reversed(self.values):
            found += found[-1:] if value is None else [value]
        return tuple(reversed(found))
