"""Progress of long work: one line that moves on a terminal, a few lines elsewhere.

What is over in a moment is not shown. Other lines, logs among them, are written above the one that moves.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

from firelane.telemetry.logs import event

log = logging.getLogger(__name__)
SHOW_AFTER_S = 0.3
"""Shorter work is not worth a line."""
LINE_EVERY_S = 10.0
"""Seconds between two lines on an output that is no terminal."""
TICK_S = 0.2
BAR_WIDTH = 20
START_OF_LINE, CLEAR_LINE = "\r", "\r\x1b[K"
STAGES = {
    "compile": "compiling kernels for this machine, once",
    "pull": "fetching the model",
    "pack": "packing weights",
    "capture": "capturing graphs",
}
"""Names of stages; others go by their own."""
SHOWN_ELSEWHERE = {"download"}
"""huggingface_hub draws bars of its own, with megabytes and files."""


@dataclass(kw_only=True)
class _Stage:
    """One kind of work. due_s: when the next line about it is due, where there is no terminal."""

    name: str
    began_s: float
    due_s: float
    done: float = 0.0
    total: float = 0.0
    unit: str = ""
    ended_s: float | None = None
    shown: bool = False

    @property
    def is_measured(self) -> bool:
        return self.total > 1

    def amount(self) -> str:
        """The amount done of the whole, or ""."""
        if not self.is_measured:
            return ""
        if self.unit != "B":
            return f"{self.done:,.0f} of {self.total:,.0f} {self.unit}".rstrip()
        return f"{self.done / 1e6:,.0f} of {self.total / 1e6:,.0f} MB"

    def times(self, now_s: float) -> str:
        """The time taken, and the time left as far as it is known."""
        took_s = now_s - self.began_s
        if not self.is_measured or self.done <= 0 or took_s < 1:
            return f"{took_s:.0f} s"
        return f"{took_s:.0f} s, {took_s * (self.total - self.done) / self.done:.0f} s left"

    def bar(self) -> str:
        full = int(BAR_WIDTH * min(1.0, self.done / self.total)) if self.is_measured else 0
        return f"[{'#' * full}{'-' * (BAR_WIDTH - full)}]" if self.is_measured else ""


class ProgressDisplay:
    """Shows stages that may run at the same time. To be called as weights.progress.Progress is, by any
    thread. A thread of its own keeps the clock moving while something is under way."""

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        tick_s: float | None = TICK_S,
        words: dict[str, str] | None = None,
    ) -> None:
        """tick_s: None = somebody else calls `tick`. words: of stages, in the place of STAGES."""
        self._given = stream
        self._moves = self.stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
        self._clock, self._tick_s = clock, tick_s
        self._words = STAGES | (words or {})
        self._stages: dict[str, _Stage] = {}
        self._drawn = False
        self._lock = threading.RLock()
        self._closed = threading.Event()
        self._ticker: threading.Thread | None = None

    def __call__(self, stage: str, done: float, total: float, unit: str, /) -> None:
        if stage in SHOWN_ELSEWHERE:
            return
        with self._lock:
            now_s = self._clock()
            one = self._stages.get(stage)
            if one is None:
                due_s = now_s + SHOW_AFTER_S
                one = self._stages[stage] = _Stage(name=stage, began_s=now_s, due_s=due_s)
            one.done, one.total, one.unit = done, total, unit
            if done >= total and one.ended_s is None:
                one.ended_s = now_s
                self._tell_end(one)
        self._keep_ticking()

    def say(self, text: str) -> None:
        """A whole line, above the one that moves."""
        self.write(text + "\n")

    def write(self, text: str) -> int:
        """Text of whole lines, as a stream takes it: logs go through here."""
        with self._lock:
            self._erase()
            self.stream.write(text)
            self._draw()
            self.stream.flush()
        return len(text)

    def flush(self) -> None:
        self.stream.flush()

    def tick(self) -> None:
        """Show what has changed, the time among it."""
        with self._lock:
            if self._moves:
                self._draw()
                self.stream.flush()
            else:
                for stage in self._running:
                    self._tell_due(stage)

    def close(self) -> None:
        """No more moves; idempotent."""
        self._closed.set()
        with self._lock:
            self._erase()
            self.stream.flush()

    @property
    def stream(self) -> TextIO:
        """The output that it writes to."""
        return self._given or sys.stderr

    @property
    def _running(self) -> list[_Stage]:
        """The stages that run, and have for long enough to be shown."""
        shown_s = self._clock() - SHOW_AFTER_S
        return [s for s in self._stages.values() if s.ended_s is None and s.began_s <= shown_s]

    def _keep_ticking(self) -> None:
        if self._ticker is None and self._tick_s is not None and not self._closed.is_set():
            self._ticker = threading.Thread(target=self._run, name="progress", daemon=True)
            self._ticker.start()

    def _run(self) -> None:
        while not self._closed.wait(self._tick_s):
            self.tick()

    def _erase(self) -> None:
        if self._drawn:
            self.stream.write(CLEAR_LINE)
            self._drawn = False

    def _draw(self) -> None:
        """The cursor stays at the start of the line: what another process writes does not follow the bar."""
        running = [] if self._closed.is_set() or not self._moves else self._running
        if not running:
            self._erase()
            return
        for stage in running:
            stage.shown = True
        text = "; ".join(self._text(stage) for stage in running)
        width = shutil.get_terminal_size().columns - 1
        self.stream.write(f"{CLEAR_LINE}{text[:width]}{START_OF_LINE}")
        self._drawn = True

    def _text(self, stage: _Stage) -> str:
        parts = (self._name(stage), stage.bar(), stage.amount(), stage.times(self._clock()))
        return " ".join(part for part in parts if part)

    def _name(self, stage: _Stage) -> str:
        return self._words.get(stage.name, stage.name)

    def _tell_due(self, stage: _Stage) -> None:
        now_s = self._clock()
        if now_s < stage.due_s:
            return
        stage.due_s = now_s + LINE_EVERY_S
        stage.shown = True
        parts = [self._name(stage), stage.amount()]
        if now_s - stage.began_s >= 1:
            parts.append(stage.times(now_s))
        self.say(": ".join((parts[0], ", ".join(filter(None, parts[1:])))).removesuffix(": "))

    def _tell_end(self, stage: _Stage) -> None:
        """Tell the end of a stage that was shown."""
        assert stage.ended_s is not None
        if stage.shown:
            of = f"{stage.total / 1e6:,.0f} MB " if stage.unit == "B" else ""
            self.say(f"{self._name(stage)}: {of}done in {stage.ended_s - stage.began_s:.1f} s")


class ProgressEvents:
    """The same as events of the log: a stage's start and its end."""

    def __init__(self) -> None:
        self._done: dict[str, bool] = {}

    def __call__(self, stage: str, done: float, total: float, unit: str, /) -> None:
        complete = done >= total
        if self._done.get(stage) not in (True, complete):
            self._done[stage] = complete
            event(log, "progress", {"stage": stage, "done": done, "total": total, "unit": unit})

    def close(self) -> None:
        pass


Display = ProgressDisplay | ProgressEvents
