"""python -m firelane.sources FD SOURCE CACHE_DIR [whole]: fetch a model. Each line that is sent through the
socket FD is a FetchReport as JSON; the last one says how it ended."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from firelane import env
from firelane.child_process import as_child
from firelane.errors import FirelaneError
from firelane.sources import hub_cache
from firelane.sources.fetch import FetchReport
from firelane.sources.locate import ModelSource
from firelane.sources.resolve import resolve
from firelane.telemetry import logs

EVERY_S = 0.25
Tell = Callable[[FetchReport], None]


def main(arguments: list[str]) -> int:
    if len(arguments) not in (3, 4):
        print("usage: python -m firelane.sources FD SOURCE CACHE_DIR [whole]", file=sys.stderr)
        return 2
    sock = as_child(arguments[0])

    def tell(report: FetchReport) -> None:
        sock.sendall(msgspec.json.encode(report) + b"\n")

    logs.set_up(env.read().log_level)
    source = ModelSource(arguments[1], Path(arguments[2]))
    try:
        _fetch(source, tell, whole=len(arguments) == 4)
    except FirelaneError as error:
        tell(FetchReport(error=str(error)))
        return error.exit_code
    tell(FetchReport(ended=True))
    return 0


def _fetch(source: ModelSource, tell: Tell, *, whole: bool) -> None:
    def progress(stage: str, done: float, total: float, unit: str) -> None:
        if stage == "pull" and unit == "B":
            tell(FetchReport(done=int(done), total=int(total)))

    watch = _HubWatch(source.hub_id, source.gguf_name, tell) if source.hub_id else None
    try:
        resolve(source.text, progress=progress, cache_dir=source.cache_dir, whole=whole)
    finally:
        if watch is not None:
            watch.close()


class _HubWatch:
    """Tells of the bytes in the hub's cache while its library fetches them."""

    def __init__(self, hub_id: str, gguf_name: str, tell: Tell) -> None:
        from huggingface_hub.utils import disable_progress_bars

        disable_progress_bars()
        self._hub_id, self._gguf_name, self._tell = hub_id, gguf_name, tell
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            expected = hub_cache.expected_blobs(self._hub_id, self._gguf_name)
        except Exception:  # of the network: the library that fetches says it better
            return
        total = sum(expected.values())
        while not self._ends.wait(EVERY_S):
            self._tell(FetchReport(done=hub_cache.bytes_there(self._hub_id, expected), total=total))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
