"""Starts a command's work before its options are read. Imports little: the sooner it is there the better."""

from __future__ import annotations

from collections.abc import Sequence

from firelane.node.engine_process import EngineAhead
from firelane.server.inherited_setup import set_up_inherited

HELP = ("-h", "--help")
"""The beginnings of options that have nothing served."""


def begin_serve(words: Sequence[str]) -> EngineAhead | None:
    """The engine's process, which loads while the options of `firelane serve` are read; None where these
    ask for none. Raises UsageError where a server cannot run here."""
    if any(word.startswith(HELP) for word in words):
        return None
    set_up_inherited()
    return EngineAhead()
