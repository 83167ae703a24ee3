"""The few lines that tell a person what a server starts with, and where it serves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from firelane.server.progress import ProgressDisplay

if TYPE_CHECKING:
    from firelane.wire.frames import Loading, Ready

LABEL_WIDTH = 9


class StartLines:
    """Each model's lines come once, whatever number of engines it has."""

    def __init__(self, display: ProgressDisplay) -> None:
        self._display = display
        self._loading: set[str] = set()
        self._ready: set[str] = set()

    def loading(self, name: str, loading: Loading) -> None:
        if name not in self._loading:
            self._loading.add(name)
            self._say("model", f"{name}: {model_text(loading)}")
            self._say("backend", loading.device)

    def ready(self, name: str, ready: Ready) -> None:
        if name not in self._ready:
            self._ready.add(name)
            self._say(
                "memory",
                f"context {ready.max_model_len:,} tokens; {cache_text(ready)}{states_text(ready)}; "
                f"{products_text(ready)}loaded in {ready.load_s:.2f} s",
            )

    def chat_format(self, name: str, line: str) -> None:
        """name: "" where there is but one model."""
        self._display.say(f"chat format{' of ' * bool(name)}{name}: {line}")

    def serving(self, names: Sequence[str], url: str, ready_s: float, note: str) -> None:
        self._display.close()
        self._say("serving", f"{', '.join(names)} at {url} after {ready_s:.2f} s{note}; Ctrl-C ends it")

    def listening(self, name: str, address: str, ready_s: float, ready: Ready) -> None:
        """Say where an engine for gateways elsewhere listens."""
        after = f"after {ready_s:.2f} s{role_text(ready)}"
        self._say("engine", f"{name} at {address} {after}; Ctrl-C ends it")

    def _say(self, label: str, text: str) -> None:
        self._display.say(f"{label:<{LABEL_WIDTH}}{text}")


def cache_text(ready: Ready) -> str:
    tokens = ready.num_blocks * ready.block_size
    size = f" in {size_text(ready.kv_bytes)}" if ready.kv_bytes else ""
    dtype = "" if ready.kv_cache_dtype == "auto" else f" of {ready.kv_cache_dtype}"
    return f"KV cache {tokens:,} tokens{size}{dtype}"


def products_text(ready: Ready) -> str:
    """Words about an engine whose products are not those of its model's numbers."""
    return "" if ready.activation_dtype == "bf16" else f"products of {ready.activation_dtype} activations; "


def role_text(ready: Ready) -> str:
    """Words about an engine whose pages travel to other hosts."""
    if not ready.pages_address:
        return ""
    role = "" if ready.role == "both" else f"; for {ready.role}"
    return f"{role}; pages at {ready.pages_address}"


def states_text(ready: Ready) -> str:
    """Words about the recurrent states of a model that keeps such."""
    if not ready.states_bytes:
        return ""
    counts = f"{ready.max_num_seqs} sequences and {ready.num_snapshots} snapshots"
    return f"; states of {counts} in {size_text(ready.states_bytes)}"


def model_text(loading: Loading) -> str:
    size = size_text(loading.weights_bytes)
    return f"{loading.architecture}, {count_text(loading.parameters)} parameters, {loading.dtype}, {size}"


def count_text(count: int) -> str:
    for unit, name in ((10**9, "billion"), (10**6, "million")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count:,}"


def size_text(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 10**9 else f"{size / 1e6:.1f} MB"
