"""The rules of `next_state`: an event of an engine gives the model its next state."""

from __future__ import annotations

import itertools

import pytest

from firelane.engine_state import EngineEvent, EngineExit, Exited, GaveUp, Lost, Retired
from firelane.node.states import TRANSITIONS, EnginesNow, Lifecycle, State, next_state
from firelane.wire.frames import Asleep, Awake
from tests.node.fake_engines import READY

S = State
EXITED, GAVE_UP, LOST = Exited(EngineExit(pid=1, return_code=1, lived_s=1.0)), GaveUp("x", 1), Lost("x")
ASLEEP, AWAKE = Asleep(1, 0, 0.0), Awake(0.0)
NONE = EnginesNow(serve=False, are_asleep=False, are_awake=False)
SERVING = EnginesNow(serve=True, are_asleep=False, are_awake=True)
HALF_AWAKE = EnginesNow(serve=True, are_asleep=False, are_awake=False)
RESTING = EnginesNow(serve=False, are_asleep=True, are_awake=False)


@pytest.mark.parametrize(
    ("state", "event", "engines", "after"),
    [
        (S.LOADING, READY, SERVING, S.READY),
        (S.WAKING, READY, SERVING, S.WAKING),
        (S.READY, READY, SERVING, S.READY),
        (S.WAKING, AWAKE, SERVING, S.READY),
        (S.WAKING, AWAKE, HALF_AWAKE, S.WAKING),
        (S.WAKING, LOST, SERVING, S.READY),
        (S.WAKING, LOST, NONE, S.WAKING),
        (S.READY, LOST, SERVING, S.READY),
        (S.SLEEPING, ASLEEP, RESTING, S.STANDBY),
        (S.SLEEPING, ASLEEP, NONE, S.SLEEPING),
        (S.READY, ASLEEP, RESTING, S.READY),
        (S.SLEEPING, EXITED, RESTING, S.STOPPING),
        (S.STANDBY, EXITED, RESTING, S.STOPPING),
        (S.READY, EXITED, NONE, S.LOADING),
        (S.READY, EXITED, SERVING, S.READY),
        (S.WAKING, EXITED, NONE, S.LOADING),
        (S.LOADING, EXITED, NONE, S.LOADING),
        (S.LOADING, GAVE_UP, NONE, S.QUARANTINED),
        (S.READY, GAVE_UP, NONE, S.QUARANTINED),
        (S.READY, GAVE_UP, SERVING, S.READY),
        (S.STOPPING, GAVE_UP, NONE, S.STOPPING),
        (S.READY, Retired("x"), NONE, S.READY),
    ],
)
def test_each_rule(state: State, event: EngineEvent, engines: EnginesNow, after: State) -> None:
    assert next_state(state, event, engines) is after


def test_a_change_of_state_is_a_line_with_its_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    life = Lifecycle("m", clock=lambda: 1.0)
    life.move(S.LOADING)
    life.move(S.QUARANTINED, "no memory")
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "model_state model=m state='loading' before='on disk' for_s=0.0",
        "model_state model=m state='quarantined' before='loading' for_s=0.0 reason='no memory'",
    ]


def test_no_event_leads_to_a_step_that_a_model_cannot_take() -> None:
    events = (READY, ASLEEP, AWAKE, LOST, EXITED, GAVE_UP)
    for state, event, engines in itertools.product(S, events, (NONE, SERVING, HALF_AWAKE, RESTING)):
        after = next_state(state, event, engines)
        assert after is state or after in TRANSITIONS[state]
