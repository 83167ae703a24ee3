"""Progress of long work: a bar for each stage on a terminal, lines otherwise."""

from __future__ import annotations

import logging
import sys
from typing import Any, Protocol, TextIO

from firelane.telemetry.logs import event

log = logging.getLogger(__name__)

# Lines, where there is no terminal: one at a stage's start, one at its end, and one each time this share more
# is done.
LINE_SHARE = 0.25


class Progress(Protocol):
    """What shows progress."""

    def __call__(self, stage: str, done: float, total: float, unit: str, /) -> None: ...

    def close(self) -> None:
        """No more comes; idempotent."""
        ...


class ProgressDisplay:
    """Shows stages that may run at the same time. To be called as weights.progress.Progress is."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._bars: dict[str, Any] = {}
        self._shown: dict[str, float] = {}

    def __call__(self, stage: str, done: float, total: float, unit: str, /) -> None:
        if self._stream.isatty():
            self._show_bar(stage, done, total, unit)
        else:
            self._show_line(stage, done, total, unit)

    def close(self) -> None:
        """Leave the bars as they are and go to a fresh line; idempotent."""
        for bar in self._bars.values():
            bar.close()
        self._bars.clear()

    def _show_bar(self, stage: str, done: float, total: float, unit: str) -> None:
        bar = self._bars.get(stage)
        if bar is None:
            from tqdm import tqdm

            bar = self._bars[stage] = tqdm(
                desc=stage,
                total=total,
                unit=unit,
                unit_scale=True,
                file=self._stream,
                position=len(self._bars),
                leave=True,
            )
        bar.total = total
        bar.update(done - bar.n)
        bar.refresh()

    def _show_line(self, stage: str, done: float, total: float, unit: str) -> None:
        share = done / total if total > 0 else 1.0
        last = self._shown.get(stage)
        if last is not None and share < 1.0 and share - last < LINE_SHARE:
            return
        if last is not None and last >= 1.0:
            return
        self._shown[stage] = share
        amount = f", {_scaled(total)}{unit}" if unit == "B" else ""
        print(f"{stage}: {share:.0%}{amount}", file=self._stream, flush=True)


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


def _scaled(size: float) -> str:
    for prefix in ("", "k", "M"):
        if size < 1000:
            return f"{size:.3g} {prefix}"
        size /= 1000
    return f"{size:.3g} G"
