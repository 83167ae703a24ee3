"""Targets of latency that roles of engines are chosen for, as an option gives them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from firelane.options import OptionError

OPTION = "--role-controller"
UNITS_S = {"ms": 0.001, "s": 1.0}


@dataclass(frozen=True, kw_only=True)
class RoleTargets:
    """Latencies that nine of ten requests (TTFT) and tokens (ITL) are to keep to, in seconds."""

    ttft_s: float
    itl_s: float

    @classmethod
    def parse(cls, text: str) -> RoleTargets:
        """From ttft=500ms,itl=50ms. Raises OptionError."""
        found: dict[str, float] = {}
        for part in text.split(","):
            name, _, value = part.strip().partition("=")
            seconds = _seconds(value.strip())
            if name not in ("ttft", "itl") or name in found or seconds <= 0:
                break
            found[name] = seconds
        else:
            if len(found) == 2:
                return cls(ttft_s=found["ttft"], itl_s=found["itl"])
        raise OptionError(f"{text[:80]}: give both targets with a unit, as ttft=500ms,itl=50ms")


def _seconds(text: str) -> float:
    """0 of what is no time."""
    unit = "ms" if text.endswith("ms") else "s"
    number = text.removesuffix(unit)
    try:
        seconds = float(number) * UNITS_S[unit] if number != text else 0.0
    except ValueError:
        return 0.0
    return seconds if math.isfinite(seconds) else 0.0
