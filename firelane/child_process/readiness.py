"""Waits until a descriptor can be used: on an event loop, or with the calling thread."""

from __future__ import annotations

import contextlib
import os
import select


async def ready_on_loop(fd: int, *, is_writing: bool, timeout_s: float | None = None) -> bool:
    """False where the time is over first. The descriptor may be closed meanwhile."""
    import asyncio  # here: engines, which wait in no loop, start without it

    loop, own = asyncio.get_running_loop(), os.dup(fd)
    ready: asyncio.Future[None] = loop.create_future()
    add, remove = (
        (loop.add_writer, loop.remove_writer) if is_writing else (loop.add_reader, loop.remove_reader)
    )

    def tell() -> None:
        if not ready.done():
            ready.set_result(None)

    add(own, tell)
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await ready
        return ready.done() and not ready.cancelled()
    finally:
        remove(own)
        os.close(own)


async def ready_here(fd: int, *, is_writing: bool, timeout_s: float | None = None) -> bool:
    """Wait like `ready_on_loop`, but never for an event loop: the calling thread does."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT if is_writing else select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))
