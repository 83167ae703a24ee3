"""The few lines that tell a person what a server starts with, and where it serves; or the same as events of
the log.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from firelane.engine_state import EngineEvent
from firelane.server.progress import Display, ProgressDisplay, ProgressEvents
from firelane.telemetry.logs import event as log_event
from firelane.telemetry.logs import write_to
from firelane.wire.frames import Loading, Progress, Ready

log = logging.getLogger(__name__)
LABEL_WIDTH = 9


@dataclass(frozen=True, kw_only=True)
class Serving:
    """A server that serves. is_open: anybody who reaches its port may use it."""

    names: Sequence[str]
    url: str
    ready_s: float
    needs_key: bool
    is_open: bool


class StartLines:
    """The report of a start for a person. Each model's lines come once, whatever number of engines it has."""

    def __init__(self, display: ProgressDisplay) -> None:
        self._display = display
        self._told: set[tuple[str, type]] = set()

    def tell(self, model: str, event: EngineEvent) -> None:
        if isinstance(event, Progress):
            self._display(event.stage, event.done, event.total, event.unit)
        elif isinstance(event, Loading | Ready) and (model, type(event)) not in self._told:
            self._told.add((model, type(event)))
            self._loading(model, event) if isinstance(event, Loading) else self._ready(event)

    def _loading(self, model: str, loading: Loading) -> None:
        self._say("model", f"{model}: {model_text(loading)}")
        if loading.draft is not None:
            self._say("draft", model_text(loading.draft))
        self._say("backend", loading.device)

    def _ready(self, ready: Ready) -> None:
        self._say(
            "memory",
            f"context {ready.max_model_len:,} tokens; {cache_text(ready)}{states_text(ready)}; "
            f"{products_text(ready)}loaded in {ready.load_s:.2f} s",
        )

    def chat_format(self, model: str, line: str, *, is_alone: bool) -> None:
        """line: the format of the model's chats. is_alone: there is no other model."""
        self._display.say(f"chat format{'' if is_alone else f' of {model}'}: {line}")

    def serving(self, now: Serving) -> None:
        note = "" if now.needs_key else "; needs no key"
        if now.is_open:
            note = "; ANYONE who reaches the port may use it (no --api-keys)"
        names = ", ".join(now.names)
        self._say("serving", f"{names} at {now.url} after {now.ready_s:.2f} s{note}; Ctrl-C ends it")

    def listening(self, model: str, address: str, ready_s: float, ready: Ready) -> None:
        """An engine waits for gateways."""
        after = f"after {ready_s:.2f} s{role_text(ready)}"
        self._say("engine", f"{model} at {address} {after}; Ctrl-C ends it")

    def close(self) -> None:
        """Nothing moves any more. The log passes the display by from now on."""
        self._display.close()
        write_to(self._display.stream)

    def _say(self, label: str, text: str) -> None:
        self._display.say(f"{label:<{LABEL_WIDTH}}{text}")


class StartEvents:
    """The report of a start for programs: events of the log."""

    def __init__(self, display: ProgressEvents) -> None:
        self._display = display

    def tell(self, model: str, event: EngineEvent) -> None:
        if isinstance(event, Progress):
            self._display(event.stage, event.done, event.total, event.unit)
        elif isinstance(event, Loading):
            fields = {field: getattr(event, field) for field in event.__struct_fields__}
            log_event(log, "loading", {"model": model, **fields})

    def chat_format(self, model: str, line: str, *, is_alone: bool) -> None:
        del is_alone
        log_event(log, "chat_format", {"model": model, "format": line})

    def serving(self, now: Serving) -> None:
        names = list(now.names)
        fields = {"model": names[0], "models": names, "url": now.url}
        log_event(log, "serving", {**fields, "ready_s": round(now.ready_s, 3), "needs_key": now.needs_key})

    def listening(self, model: str, address: str, ready_s: float, ready: Ready) -> None:
        fields = {"model": model, "address": address, "ready_s": round(ready_s, 3)}
        log_event(log, "listening", {**fields, "role": ready.role, "pages_address": ready.pages_address})

    def close(self) -> None:
        self._display.close()


StartReport = StartLines | StartEvents


def start_report(display: Display) -> StartReport:
    return StartLines(display) if isinstance(display, ProgressDisplay) else StartEvents(display)


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
    """In the unit that fits."""
    for unit, name, digits in ((10**12, "TB", 2), (10**9, "GB", 2), (10**6, "MB", 1)):
        if size >= unit:
            return f"{size / unit:.{digits}f} {name}"
    return f"{size / 1e3:.1f} kB"
