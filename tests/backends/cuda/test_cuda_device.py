"""CudaDevice on a PyTorch that only notes what it is told: which stream work goes to, and for how long a
fence waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from firelane.backends.cuda import cuda_device
from firelane.backends.cuda.cuda_device import CudaDevice
from firelane.errors import MachineError


@dataclass
class FakeCuda:
    """torch.cuda, as far as CudaDevice uses it. Like the real one it has a current stream for each thread."""

    log: list[tuple[str, str]] = field(default_factory=list)
    polls: int = 0
    streams: int = 0
    current: threading.local = field(default_factory=threading.local)

    def note(self, what: str) -> None:
        self.log.append((what, getattr(self.current, "stream", "default")))

    def Stream(self, _: torch.device) -> str:  # noqa: N802
        self.streams += 1
        return f"stream {self.streams}"

    @contextmanager
    def stream(self, stream: str) -> Iterator[None]:
        before = getattr(self.current, "stream", "default")
        self.current.stream = stream
        yield
        self.current.stream = before

    def Event(self) -> Any:  # noqa: N802
        return SimpleNamespace(record=lambda stream: self.log.append(("event", stream)), query=self._query)

    def CUDAGraph(self) -> Any:  # noqa: N802
        return SimpleNamespace(
            capture_begin=lambda **_: self.note("capture"),
            capture_end=lambda: self.note("end"),
            replay=lambda: self.note("replay"),
        )

    def get_device_properties(self, _: torch.device) -> Any:
        return SimpleNamespace(name="fake", multi_processor_count=3)

    def current_device(self) -> int:
        return 0

    def graph_pool_handle(self) -> int:
        return 0

    def empty_cache(self) -> None:
        self.note("empty_cache")

    def _query(self) -> bool:
        self.polls -= 1
        return self.polls < 0


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    monkeypatch.setattr(
        cuda_device, "torch", SimpleNamespace(cuda=fake, device=torch.device, int32=torch.int32)
    )
    return fake


def test_every_thread_replays_on_the_devices_own_stream(cuda: FakeCuda) -> None:
    first, second = CudaDevice(), CudaDevice()  # a thread's current stream is left as it is
    graph = first.capture(lambda: cuda.note("work"))
    second.capture(lambda: None)
    cuda.log.clear()
    graph.replay()
    in_thread(graph.replay)
    first.mark()
    assert cuda.log == [("replay", "stream 1"), ("replay", "stream 1"), ("event", "stream 1")]
    cuda.note("afterwards")
    assert cuda.log[-1] == ("afterwards", "default")


def test_a_device_is_the_threads_current_one_unless_it_is_named(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "current_device", lambda: 2)
    opened = []
    monkeypatch.setattr(cuda, "get_device_properties", opened.append)
    CudaDevice()
    CudaDevice(1)
    assert opened == [torch.device("cuda", 2), torch.device("cuda", 1)]


def test_work_is_captured_on_the_devices_own_stream(cuda: FakeCuda) -> None:
    CudaDevice().capture(lambda: cuda.note("work"))
    assert [what for what, _ in cuda.log] == ["work", "event", "capture", "work", "end"]
    assert {stream for _, stream in cuda.log} == {"stream 1"}


def test_a_fence_polls_until_its_event_has_ended(cuda: FakeCuda) -> None:
    fence = CudaDevice().mark()
    cuda.polls = 3
    fence.wait(60.0)
    assert cuda.polls == -1


def test_a_wait_ends_after_its_limit(cuda: FakeCuda) -> None:
    fence = CudaDevice().mark()
    cuda.polls = 1 << 40
    with pytest.raises(MachineError, match=r"not ended its work within 0\.001 s.*nvidia-smi"):
        fence.wait(0.001)


def test_draining_a_device_that_hangs_says_so(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    device = CudaDevice()
    assert device.drain()
    monkeypatch.setattr(cuda_device, "DRAIN_LIMIT_S", 0.001)
    cuda.polls = 1 << 40
    assert not device.drain()


def in_thread(work: Callable[[], None]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
