"""BackgroundCheck: packed weights are served at once, and read as a whole beside that, at a pace that leaves
the steps their memory.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from functools import partial

from firelane.errors import CacheError, FirelaneError
from firelane.heap import give_back_freed
from firelane.weights.checkpoints.checkpoint import Checkpoint
from firelane.weights.packing.packed import PackedWeights
from firelane.weights.packing.plan import PackedWeight
from firelane.weights.packing.source import is_source
from firelane.weights.storage.fingerprint import FileStamp
from firelane.weights.storage.huge_pages import HugePages

SHARE = 0.1
"""The share of one core's time, while steps run."""
QUIET_S = 0.05
"""After a step, until its engine counts as idle: in a running batch the next one comes sooner."""


class StepPace:
    """Tells a thread that works in small pieces how long to rest between them: not at all while no step runs,
    and else so long that its pieces are SHARE of the time. The thread of the steps says when they run.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        worked: Callable[[], float] = time.thread_time,
    ) -> None:
        """worked: seconds of a core that the calling thread has had."""
        self._clock, self._worked = clock, worked
        self._is_running = False
        self._ended_s = -QUIET_S
        self._rested_at: float | None = None

    def step_begins(self) -> None:
        self._is_running = True

    def step_ends(self) -> None:
        self._is_running, self._ended_s = False, self._clock()

    def rest(self, stop: threading.Event) -> None:
        """Between two pieces; `stop` ends it early."""
        before, now = self._rested_at, self._worked()
        if before is not None and self._is_busy():
            stop.wait((now - before) * (1 / SHARE - 1))
        self._rested_at = self._worked()

    def _is_busy(self) -> bool:
        return self._is_running or self._clock() - self._ended_s < QUIET_S


LEAST_PRIORITY = 19
AFTER_WAKE_S = 2.0
"""Until weights move again: the first tokens come first."""
log = logging.getLogger(__name__)


class WeightCheck:
    """Whether weights that are served may go on being served; nobody doubts these. It is told of each step,
    beside which it takes little."""

    def step_begins(self) -> None:
        """Raises CacheError where it has failed."""

    def step_ends(self) -> None:
        return

    def wait(self) -> None:
        """Until it has ended."""

    def standby(self) -> None:
        """Let go of the weights' pages, and read none of them before `wake`."""

    def wake(self) -> None:
        return

    def close(self) -> None:
        """End it, if it still runs; idempotent."""


class BackgroundCheck(WeightCheck):
    """Compares weights with the digests that they were written with before the first step, as fast as it can
    while the engine goes on starting. What follows has a thread of the least priority, which keeps to a share
    of the time while steps run: it moves the weights to `pages` (steps are faster then), and, where its
    stamps are new, compares the checkpoint with what was packed. Weights that were packed just now are used
    at once, and compared when they lie on the drive; then what packing took goes back to the system. A file
    that fails is removed: the next start packs the weights again.
    """

    def __init__(
        self,
        weights: PackedWeights,
        placed: tuple[PackedWeight, ...],
        checkpoint: Checkpoint,
        *,
        pages: HugePages | None = None,
    ) -> None:
        """checkpoint: kept, and with it what is mapped of its files, for as long as it is needed."""
        self._weights, self._placed, self._pages = weights, placed, pages
        self._stopped, self._pace = threading.Event(), StepPace()
        self._failure = ""
        self._awake = threading.Event()
        self._awake.set()
        self._usable = threading.Event()
        self._was_packed_now = weights.seal is not None
        if self._was_packed_now:
            self._usable.set()
        self._thread = self._mover = _started(partial(self._run, checkpoint))

    def step_begins(self) -> None:
        self._usable.wait()
        if self._failure:
            raise CacheError(self._failure)
        self._pace.step_begins()

    def step_ends(self) -> None:
        self._pace.step_ends()

    def standby(self) -> None:
        self._awake.clear()
        if self._pages is not None:
            self._pages.let_go()

    def wake(self) -> None:
        if self._awake.is_set():
            return
        self._awake.set()
        if self._pages is not None and self._pages.take_back():
            self._mover = _started(partial(self._move, after_s=AFTER_WAKE_S))

    def close(self) -> None:
        self._stopped.set()
        self._awake.set()
        self._thread.join()
        self._mover.join()

    def wait(self) -> None:
        """Until all is read."""
        self._thread.join()

    def _move(self, after_s: float = 0.0) -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, 0, LEAST_PRIORITY)  # Linux: the calling thread's
        if self._pages is not None and not self._stopped.wait(after_s):
            self._pages.move(self._stopped.is_set)

    def _run(self, checkpoint: Checkpoint) -> None:
        began_s = time.monotonic()
        try:
            failure = self._before_use() or self._after(checkpoint)
        except FirelaneError as error:  # the drive, or the checkpoint is gone: no reason to stop
            log.warning("weights could not be checked: %s", error)
            return
        finally:
            self._usable.set()
        if self._was_packed_now:
            give_back_freed()
        if failure or self._stopped.is_set():
            return
        size, took_s = self._weights.nbytes / 1e9, time.monotonic() - began_s
        log.debug(
            "packed weights checked: %.2f GB in %.1f s, %.2f s of a core", size, took_s, time.thread_time()
        )

    def _before_use(self) -> str:
        began_s = time.monotonic()
        failure = "" if self._was_packed_now else self._damage(self._stopped.is_set)
        self._fail(failure)
        self._usable.set()
        log.debug("packed weights checked before use: %.2f s", time.monotonic() - began_s)
        return failure

    def _after(self, checkpoint: Checkpoint) -> str:
        self._move()
        failure = self._find(checkpoint)
        self._fail(failure)
        return failure

    def _fail(self, failure: str) -> None:
        """Take note of it, where there is one."""
        if failure and not self._stopped.is_set():
            _remove(self._weights)
            log.error("weights_damaged error=%r", failure)
            self._failure = failure

    def _damage(self, stopped: Callable[[], bool]) -> str:
        """Which weight is not what was written, or ""."""
        name = self._weights.damage(stopped)
        if name is None:
            return ""
        path = self._weights.path
        return f"{path}: weight {name} is damaged; the file was removed, start again to pack it anew"

    def _is_over(self) -> bool:
        """Between two pieces of the work: whether to leave it."""
        self._pace.rest(self._stopped)
        self._awake.wait()
        return self._stopped.is_set()

    def _find(self, checkpoint: Checkpoint) -> str:
        """The fault that was found, or ""."""
        path, stopped = self._weights.path, self._is_over
        try:
            self._weights.sealed()
        except CacheError as error:
            return str(error)
        if self._was_packed_now and (damage := self._damage(stopped)):
            return damage
        if not is_source(path, self._placed, checkpoint, stopped):
            where = checkpoint.directory
            return f"{path}: was packed from other weights than {where} has now; removed, start again"
        return ""


def _started(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, name="check weights", daemon=True)
    thread.start()
    return thread


def _remove(weights: PackedWeights) -> None:
    """The file that was found damaged, not one that another process has packed since."""
    with contextlib.suppress(OSError):
        if FileStamp.of(weights.path.stat()).inode == weights.stamp.inode:
            weights.path.unlink()
