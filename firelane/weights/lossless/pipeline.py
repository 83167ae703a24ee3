"""Work in threads, results in order, a bounded number of them in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

SPAN_BYTES = 2 << 20  # of original bytes in one task
AHEAD = 2  # tasks that wait beside those that run


def ordered(work: Callable[[T], R], items: Iterable[T], *, threads: int) -> Iterator[R]:
    """work(item) of each item, in the items' order; at most threads + AHEAD results exist at a time. An
    exception of `work` comes out in its place; what did not start by then is not started.
    """
    if threads == 1:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="lossless") as pool:
        waiting: deque[Future[R]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) == threads + AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def spans(nbytes: int, chunk_bytes: int) -> list[tuple[int, int]]:
    """A tensor's bytes in tasks: begin, end of each, on borders of chunks."""
    step = max(1, SPAN_BYTES // chunk_bytes) * chunk_bytes
    return [(at, min(at + step, nbytes)) for at in range(0, nbytes, step)]
