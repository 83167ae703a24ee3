"""Processes of a server by their kind, as its log and docs/serving.md name them."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from firelane.bench.server import descendants

MODULES = {
    "gateway": b"firelane.server.gateway_process\0",
    "template": b"firelane.text.rendering.template_worker\0",
    "grammar_trial": b"firelane.engine.grammar.trial\0",
    "rank": b"firelane.backends.cpu.ranks.worker\0",
    "engine": b"firelane.engine\0",
}
"""Words of a command line."""
AGENTS = {"transfer_agent": b"\0agent\0", "transfer_helper": b"\0helper\0"}
"""Words of a command line with the module of NIXL."""
HELPERS = ("grammar_helper", "compile_helper", "bytecode_helper")
"""Processes that an engine forks: they have its command line, and a name."""
COMPILERS = ("g++", "c++", "clang++", "cc1plus", "as", "ld", "collect2", "lld", "clang")
KINDS = (*MODULES, *AGENTS, *HELPERS, "compiler")


def processes(server: int) -> dict[str, list[int]]:
    """Ids of the processes below the server's that run, by kind."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for pid in descendants(server):
        try:
            kind = _kind(Path(f"/proc/{pid}"))
        except OSError:
            continue
        if kind is not None:
            found[kind].append(pid)
    return found


def _kind(folder: Path) -> str | None:
    """None for processes that do not run, and for others. Raises OSError where it has ended."""
    name, command = (folder / "comm").read_text().strip(), (folder / "cmdline").read_bytes()
    if (folder / "stat").read_text().rpartition(")")[2].split()[0] in "ZTt":
        return None
    if name in HELPERS:
        return name
    if name in COMPILERS:
        return "compiler"
    words = AGENTS if b"firelane.nixl\0" in command else MODULES
    return next((kind for kind, part in words.items() if part in command), None)
