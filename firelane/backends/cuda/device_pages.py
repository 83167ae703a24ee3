"""Pages and recurrent states of a device, copied to and from host memory beside the steps."""

from __future__ import annotations

import logging
import threading
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from firelane.backends.cuda.device.device import Device
from firelane.backends.cuda.device.faults import translated
from firelane.backends.cuda.lowering.step_memory import StepMemory
from firelane.backends.cuda.step.kv_pages import layout_id
from firelane.backends.cuda.step.state_pool import state_layout_id
from firelane.contract import StepLimits
from firelane.errors import FirelaneError
from firelane.program.program import Program

log = logging.getLogger(__name__)


class CopyGate:
    """Open while there is memory to copy: who takes it away closes the gate, and waits for copies that are
    under way."""

    def __init__(self) -> None:
        self._is_open, self._running = True, 0
        self._changed = threading.Condition()

    @contextmanager
    def passing(self) -> Generator[bool]:
        """Whether it is open, and then stays so."""
        with self._changed:
            is_open = self._is_open
            self._running += is_open
        try:
            yield is_open
        finally:
            with self._changed:
                self._running -= is_open
                self._changed.notify_all()

    def close(self) -> None:
        """Returns when no copy runs. Idempotent."""
        with self._changed:
            self._is_open = False
            self._changed.wait_for(lambda: not self._running)

    def open(self) -> None:
        with self._changed:
            self._is_open = True


class DevicePages:
    """A PageMemory on a device: the rows of a pool on the device.

    Copies go over a stream of their own, beside the steps', and the host orders the two: a page is read when
    the step that has written it was waited for, and a page that was written is used by steps that are
    submitted when its copy was waited for. No step in flight has either.
    """

    pages = None
    fd = -1

    def __init__(self, device: Device, pool: Tensor, layout_id: str, gate: CopyGate) -> None:
        """pool: [num_pages, elements of a page]. gate: closed while the pool has no memory."""
        self._device, self._gate, self.layout_id = device, gate, layout_id
        self._rows = pool.view(torch.uint8)
        self.num_pages, self.page_bytes = self._rows.shape

    def buffer(self, count: int) -> NDArray[np.uint8]:
        """Pinned, which the device copies to and from by itself; as the system has it where none can be."""
        try:
            return self._device.pinned(count, self.page_bytes, dtype=torch.uint8).numpy()
        except FirelaneError as error:
            log.warning("kv_copy_not_pinned error=%r: copies of pages are slower", str(error))
            return np.empty((count, self.page_bytes), np.uint8)

    def read(self, pages: Sequence[int], into: NDArray[np.uint8], first: int = 0) -> bool:
        with self._gate.passing() as is_open:
            return is_open and self._copied(
                zip(torch.from_numpy(into), self._bytes(pages, first, into), strict=True)
            )

    def write(self, pages: Sequence[int], source: NDArray[np.uint8], first: int = 0) -> bool:
        with self._gate.passing() as is_open:
            return is_open and self._copied(
                zip(self._bytes(pages, first, source), torch.from_numpy(source), strict=True)
            )

    def _bytes(self, pages: Sequence[int], first: int, rows: NDArray[np.uint8]) -> list[Tensor]:
        """Bytes of each page that belong to a row, on the device; while there is memory."""
        assert len(pages) == len(rows)
        return [self._rows[page, first : first + rows.shape[1]] for page in pages]

    def _copied(self, copies: Iterable[tuple[Tensor, Tensor]]) -> bool:
        try:
            with translated("copying pages of the KV cache"):
                self._device.copy_beside(list(copies)).wait()
        except FirelaneError as error:
            log.warning("kv_copy_failed error=%r", str(error))
            return False
        return True


def device_memories(
    device: Device, memory: StepMemory, program: Program, limits: StepLimits, gate: CopyGate
) -> tuple[DevicePages, DevicePages | None]:
    """Pages and, of a program that keeps such, recurrent states. gate: as in DevicePages, of both."""
    pages = DevicePages(device, memory.pages.pool, layout_id(program, limits), gate)
    if not limits.state_bytes:
        return pages, None
    return pages, DevicePages(device, memory.states.pool, state_layout_id(program), gate)
