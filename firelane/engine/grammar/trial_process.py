"""The start of processes that try out grammars, by the engine itself, or, where it may start no programs,
helpers that it forked before."""

from __future__ import annotations

import socket

from firelane import env
from firelane.child_process import Child, Replacements
from firelane.child_process.child import SILENT
from firelane.child_process.nursery import Nursery, python_path, spawn_module

MODULE = "firelane.engine.grammar.trial"
HELPER = "grammar_helper"


def start_trial() -> tuple[Child, socket.socket]:
    """Start the process of a trial, as StartWorker says."""
    return Child.connected([MODULE], _environment(), streams=SILENT)


def fork_trials(replaced: Replacements) -> Nursery:
    """Helpers, which start nothing else. Called while the process has one thread, and little in memory."""
    return Nursery.fork(HELPER, _spawn, replaced)


def _spawn(fd: int) -> int:
    return spawn_module([MODULE], _environment(), fd, shows_errors=False)


def _environment() -> dict[str, str]:
    return env.for_child(PYTHONPATH=python_path())
