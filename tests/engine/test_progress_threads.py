"""Progress is reported by the threads that compile and pack, and by the one that tells a failure."""

from __future__ import annotations

import socket
import threading

from firelane.engine.process.heartbeat import Pulse
from firelane.engine.process.process import _progress_to
from firelane.link.channel import Channel
from firelane.link.framing import FrameReader
from firelane.wire.frames import FromEngine, Progress, ToEngine

REPORTS = 3000


def test_reports_of_two_threads_arrive_whole() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        report = _progress_to(Channel[ToEngine](theirs, ToEngine), Pulse())
        failures: list[BaseException] = []

        def send(stage: str) -> None:
            try:
                for i in range(REPORTS):
                    report(stage, i, REPORTS, "B")
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=send, args=(stage,)) for stage in ("pack", "compile")]
        for thread in threads:
            thread.start()
        reader: FrameReader[FromEngine] = FrameReader(FromEngine)
        frames: list[FromEngine] = []
        ours.settimeout(60)
        while len(frames) < 2 * REPORTS and not failures:
            frames += reader.feed(ours.recv(1 << 16))
            if not any(t.is_alive() for t in threads) and len(frames) < 2 * REPORTS:
                report("last", 1, 1, "")  # what the socket did not take goes out with the next call
        for thread in threads:
            thread.join()
    assert failures == []
    done = [f.done for f in frames if isinstance(f, Progress) and f.stage == "pack"]
    assert done == list(range(REPORTS))
