"""Work beside the loading of weights: compiling, above all."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def in_background(work: Callable[[], T], *, name: str, until: threading.Event | None = None) -> Future[T]:
    """Run `work` in a thread that nobody has to wait for: damaged weights are reported at once, not when the
    compiler is done. name: of the thread. until: it lives on until then, as do processes that it has started
    and that end with their parent: Linux takes the thread for that."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)
        if until is not None:
            until.wait()

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
