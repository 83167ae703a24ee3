"""Options of a `firelane serve` that a file to deploy with starts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from firelane.cli import build_parser
from firelane.server.options.sets import SERVE


def parsed(words: list[str]) -> Any:
    """The options with their defaults; the test fails where the command would refuse them."""
    assert words[:1] == ["serve"]
    defaults = {one.key: one.default for one in SERVE.by_key.values()}
    return SimpleNamespace(**defaults | vars(build_parser().parse_args(words)))
