"""The engine of one place: what is told, in which order, and what is known of its present process."""

from __future__ import annotations

import signal
import time

import msgspec
import pytest

from firelane import engine_state
from firelane.engine_state import Connected, EngineLifecycle, LinkState, Lost, Retired
from firelane.wire.frames import Failed, Progress
from tests.ready_frame import READY


class Scene:
    def __init__(self) -> None:
        self.calls: list[object] = []
        self.own = EngineLifecycle(self._tell, lambda engine: self.calls.append(engine.link))
        self.calls.clear()

    def _tell(self, event: object) -> None:
        self.calls.append(event)


def test_the_state_is_there_before_an_event_is_told() -> None:
    scene = Scene()
    scene.own.begin(is_remote=False)
    assert scene.calls == [LinkState.STARTING, Connected(False)]
    scene.calls.clear()
    scene.own.serve(READY)
    assert scene.calls == [LinkState.READY]  # the caller tells it
    assert (scene.own.is_ready, scene.own.ready) == (True, READY)


def test_only_an_engine_that_serves_can_be_retired() -> None:
    scene = Scene()
    scene.own.retire("too early")
    assert scene.calls == []
    scene.own.serve(READY)
    scene.calls.clear()
    scene.own.retire("replaced")
    scene.own.retire("once more")
    assert scene.calls == [LinkState.DEAD, Retired("replaced")]
    assert (scene.own.is_ready, scene.own.ready) == (False, None)


def test_the_next_process_has_answered_nothing_yet() -> None:
    own, before_s = Scene().own, time.monotonic()
    own.serve(READY)
    own.has_served = own.has_crashed = True
    assert own.ready_s is not None
    assert before_s <= own.ready_s <= time.monotonic()
    own.begin(is_remote=True)
    assert (own.has_served, own.has_crashed, own.ready_s) == (False, False, None)
    assert own.engine.is_remote


def test_a_role_stays_with_the_place() -> None:
    own = Scene().own
    own.assign_role("decode")
    own.begin(is_remote=False)
    own.serve(READY)
    assert own.engine.role == "decode"
    own.assign_role("")
    assert own.engine.role == READY.role


def test_the_next_load_is_timed_anew() -> None:
    own = Scene().own
    own.note_progress(Progress("load", 0, 100, "B"))
    assert own.load_clock.left_s(time.monotonic()) == engine_state.UNKNOWN_S
    assert own.engine.progress is not None
    own.lose(Lost("closed"))
    assert own.load_clock.left_s(time.monotonic()) == 1


@pytest.mark.parametrize(
    ("code", "is_remote", "failed", "has_crashed"),
    [
        (-signal.SIGSEGV, False, None, True),
        (-signal.SIGKILL, False, None, False),
        (-signal.SIGSEGV, True, None, False),
        (-signal.SIGSEGV, False, Failed("a rank was killed", 3), False),
    ],
)
def test_an_engine_that_ends_by_itself_has_crashed(
    monkeypatch: pytest.MonkeyPatch, code: int, is_remote: bool, failed: Failed | None, has_crashed: bool
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(engine_state, "code_of", lambda pid: asked.append(pid) or code)
    own = Scene().own
    own.begin(is_remote=is_remote)
    own.serve(msgspec.structs.replace(READY, pid=77))
    if failed is not None:
        own.change(failed)
    own.lose(Lost("closed"))
    assert own.has_crashed is has_crashed
    assert set(asked) <= {77}
    assert own.engine.reason == (failed.message if failed else "closed")


def test_one_that_hung_stays_crashed_whatever_its_end_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_state, "code_of", lambda _: -signal.SIGKILL)
    own = Scene().own
    own.serve(READY)
    own.has_crashed = True  # by the link, which has killed it
    own.lose(Lost("hangs"))
    assert own.has_crashed
