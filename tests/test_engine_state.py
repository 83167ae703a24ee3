"""The state of an engine: which event changes it, and into what."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firelane.child_process.child import in_words
from firelane.engine_state import (
    Assigned,
    Connected,
    EngineEvent,
    EngineExit,
    EngineState,
    Exited,
    GaveUp,
    LinkState,
    Lost,
    Retired,
    Sleeping,
    Unreachable,
    apply,
)
from firelane.wire.frames import Asleep, Awake, Failed, Loading, Progress
from tests import ready_frame

READY = msgspec.structs.replace(ready_frame.READY, role="prefill", engine_id="e", pages_address="host:1")
ENDED = EngineExit(pid=7, return_code=-9, lived_s=1.0)
EVENTS: list[EngineEvent] = [
    Connected(),
    Connected(is_remote=True),
    Unreachable("no route"),
    Loading(architecture="a", parameters=1, dtype="bf16", weights_bytes=2, device="CPU"),
    Progress("load", 1, 2, "B"),
    READY,
    Assigned("decode"),
    Assigned(""),
    Retired("replaced"),
    Sleeping(),
    Asleep(1, 2, 0.0),
    Awake(0.0),
    Failed("no memory", 3),
    Lost("closed"),
    Exited(ENDED),
    GaveUp("dead", 1),
]


def after(*events: EngineEvent) -> EngineState:
    state = EngineState()
    for event in events:
        state = apply(state, event)
    return state


def test_a_life() -> None:
    assert after().link is LinkState.STARTING
    assert after().reason == "the engine has not been started yet"
    assert after(Connected()).reason == "the engine is starting"
    serving = after(Connected(), EVENTS[4], READY)
    assert (serving.link, serving.reason, serving.ready) == (LinkState.READY, "", READY)
    assert serving.progress == EVENTS[4]
    asleep = after(Connected(), READY, Sleeping(), Asleep(1, 2, 0.0))
    assert (asleep.link, asleep.asleep, asleep.ready) == (LinkState.STANDBY, Asleep(1, 2, 0.0), READY)
    assert asleep.reason == "the engine is in standby"
    awake = apply(asleep, Awake(0.0))
    assert (awake.link, awake.asleep, awake.reason) == (LinkState.READY, None, "")
    gone = apply(asleep, Lost("closed"))
    assert (gone.link, gone.ready, gone.asleep, gone.reason) == (LinkState.DEAD, None, None, "closed")
    assert apply(gone, Connected()) == after(Connected())


def test_the_last_words_of_an_engine_are_the_reason_of_its_end() -> None:
    assert after(Connected(), Failed("no memory", 3)).reason == "no memory"
    gone = after(Connected(), Failed("no memory", 3), Lost("closed"))
    assert (gone.reason, gone.failed) == ("no memory", Failed("no memory", 3))
    assert (
        after(Connected(), Failed("no memory", 3), Lost("closed"), Connected(), Lost("cut")).reason == "cut"
    )


def test_a_role_outlives_the_engine_and_its_own_role_comes_back() -> None:
    assert after(READY).role == "prefill"
    assert after(READY, Assigned("decode")).role == "decode"
    assert after(READY, Assigned("decode"), Lost("x"), Connected(), READY).role == "decode"
    assert after(READY, Assigned("decode"), Assigned("")).role == "prefill"
    assert after(Assigned("decode")).role == "both"


def test_pages_are_asked_of_another_host_alone() -> None:
    assert after(READY).pages_address == ""
    assert after(Connected(), READY).pages_address == ""
    assert after(Connected(is_remote=True), READY).pages_address == "host:1"
    assert after(Connected(is_remote=True)).pages_address == ""
    assert (after(READY).kv_tokens, after(READY).engine_id) == (64, "e")
    assert (after().kv_tokens, after().engine_id) == (0, "")
    assert after(msgspec.structs.replace(READY, num_blocks=5)).kv_tokens == 80


@pytest.mark.parametrize(
    ("before", "late"),
    [
        ((Connected(),), Retired("x")),
        ((Connected(),), Sleeping()),
        ((Connected(), READY), Asleep(1, 2, 0.0)),
        ((Connected(), READY), Awake(0.0)),
        ((Connected(), READY, Retired("x")), Awake(0.0)),
        ((Connected(), READY, Sleeping()), Retired("x")),
        ((Connected(), READY), Exited(ENDED)),
        ((Connected(), READY), GaveUp("x", 1)),
    ],
)
def test_an_event_that_comes_too_late_changes_nothing(
    before: tuple[EngineEvent, ...], late: EngineEvent
) -> None:
    state = after(*before)
    assert apply(state, late) is state


@given(st.lists(st.sampled_from(EVENTS), max_size=12))
def test_any_order_leaves_a_state_that_is_one_of_the_four(events: list[EngineEvent]) -> None:
    state = after(*events)
    assert state == after(*events)
    assert (state.reason == "") <= (state.link is LinkState.READY)
    if state.link in (LinkState.READY, LinkState.STANDBY):
        assert state.ready is not None
    if state.asleep is not None:
        assert state.link is LinkState.STANDBY


@pytest.mark.parametrize(("code", "exit_code"), [(-9, 1), (0, 1), (5, 5)])
def test_the_end_of_a_process_in_words_and_as_a_code(code: int, exit_code: int) -> None:
    ended = EngineExit(pid=7, return_code=code, lived_s=1.0)
    assert ended.exit_code == exit_code
    assert not GaveUp("x", exit_code).was_killed
    assert str(ended) == f"engine process 7 {in_words(code)}"
