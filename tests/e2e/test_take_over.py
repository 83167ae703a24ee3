"""A server that takes the port from another one, under requests."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import httpx
from e2e_support import TIMEOUT_S, RawRequest, status, wait_until

from firelane.bench.server import ServerProcess

BODY = {"prompt": [50, 51, 52], "max_tokens": 4, "ignore_eos": True}


class Load:
    """Requests without a pause, on one connection that is kept and on new ones."""

    def __init__(self, url: str) -> None:
        self.statuses: list[int] = []
        self._url = f"{url}/v1/completions"
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with httpx.Client(timeout=TIMEOUT_S) as kept:
            while not self._ended.is_set():
                self.statuses.append(kept.post(self._url, json=BODY).status_code)
                self.statuses.append(httpx.post(self._url, json=BODY, timeout=TIMEOUT_S).status_code)

    def more(self, count: int = 4) -> None:
        wanted = len(self.statuses) + count
        wait_until(lambda: len(self.statuses) >= wanted or not self._thread.is_alive())

    def end(self) -> set[int]:
        """All statuses; 0 where a request was lost."""
        lost = {0} if not self._thread.is_alive() else set[int]()
        self._ended.set()
        self._thread.join()
        return {*self.statuses, *lost}


def test_a_successor_takes_the_port_and_loses_no_request(environ: dict[str, str]) -> None:
    with ServerProcess(["--backend", "null", "--take-over"], environ=environ) as old:
        port = old.url.rpartition(":")[2]
        load = Load(old.url)
        load.more()
        engine = old.engine_pids[0]
        with ServerProcess(["--backend", "null", "--port", port, "--take-over"], environ=environ) as new:
            assert new.url == old.url
            load.more()
            assert load.end() == {200}
            assert old.process.wait(TIMEOUT_S) == 0
            assert "succeeded requests=" in old.log
            assert status(new.url) == 200
            assert not Path(f"/proc/{engine}").exists()


def test_what_the_predecessor_has_begun_ends_there(environ: dict[str, str]) -> None:
    arguments = ["--backend", "null", "--engine-timeout", "600"]
    with ServerProcess(arguments, environ=environ) as old:
        (engine,) = old.engine_pids
        os.kill(engine, signal.SIGSTOP)
        begun = RawRequest(old.url)
        port = old.url.rpartition(":")[2]
        with ServerProcess([*arguments, "--port", port, "--take-over"], environ=environ) as new:
            wait_until(lambda: "succeeded requests=1" in old.log)
            assert RawRequest(new.url).result()[0] == 200
            assert old.process.poll() is None
            os.kill(engine, signal.SIGCONT)
            assert begun.result()[0] == 200
            assert old.process.wait(TIMEOUT_S) == 0
