"""Memory, CPU time and descriptors of the processes of a server, as one of them shows them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

OF_ONE = ("process_start_time_seconds", "process_max_fds")
"""Figures of processes that no sum is made of."""


class ProcessSums:
    """The system's account of the processes of a server: the sums, and of OF_ONE that of this one."""

    def __init__(self, pids: Callable[[], Iterable[int]]) -> None:
        self._pids = pids

    def collect(self) -> Iterator[Any]:
        from prometheus_client import ProcessCollector

        sums: dict[str, Any] = {}
        for pid in (os.getpid(), *(pid for pid in self._pids() if pid != os.getpid())):
            for family in ProcessCollector(pid=lambda pid=pid: pid, registry=None).collect():
                known = sums.setdefault(family.name, family)
                if known is not family and family.name not in OF_ONE:
                    (one,), (other,) = known.samples, family.samples
                    known.samples = [one._replace(value=one.value + other.value)]
        yield from sums.values()
