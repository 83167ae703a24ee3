"""python -m firelane.sources SOURCE CACHE_DIR [whole]: fetch a model. Each line of the output is a Report as
JSON; the last one says how it ended."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import msgspec

from firelane import env
from firelane.child_process import end_with_parent, has_parent
from firelane.errors import FirelaneError
from firelane.sources import hub_cache
from firelane.sources.fetch import Report
from firelane.sources.locate import Source
from firelane.sources.resolve import resolve
from firelane.telemetry import logs

EVERY_S = 0.25


def main(arguments: list[str]) -> int:
    if len(arguments) not in (2, 3):
        print("usage: python -m firelane.sources SOURCE CACHE_DIR [whole]", file=sys.stderr)
        return 2
    end_with_parent()
    if not has_parent(sys.stdout.fileno()):
        return 1
    logs.set_up(env.read().log_level)
    source = Source(arguments[0], Path(arguments[1]))
    try:
        _fetch(source, whole=len(arguments) == 3)
    except FirelaneError as error:
        _tell(Report(error=str(error)))
        return error.exit_code
    _tell(Report(ended=True))
    return 0


def _fetch(source: Source, *, whole: bool) -> None:
    def progress(stage: str, done: float, total: float, unit: str) -> None:
        if stage == "pull" and unit == "B":
            _tell(Report(done=int(done), total=int(total)))

    watch = _HubWatch(source.hub_id, source.gguf_name) if source.hub_id else None
    try:
        resolve(source.text, progress=progress, cache_dir=source.cache_dir, whole=whole)
    finally:
        if watch is not None:
            watch.close()


class _HubWatch:
    """Tells of the bytes in the hub's cache while its library fetches them."""

    def __init__(self, hub_id: str, gguf_name: str) -> None:
        from huggingface_hub.utils import disable_progress_bars

        disable_progress_bars()
        self._hub_id, self._gguf_name = hub_id, gguf_name
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
            _tell(Report(done=hub_cache.bytes_there(self._hub_id, expected), total=total))


def _tell(report: Report) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
