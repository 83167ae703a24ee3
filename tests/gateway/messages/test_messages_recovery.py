"""Messages that lose their engine: they go on with another one, as all requests do."""

from __future__ import annotations

import threading

import pytest
from messages_support import ask, events

from firelane.engine_state import LinkState
from firelane.gateway.engines.recovery.recovery import Resume

TEXT = "the quick brown fox jumps over the lazy dog"


def kill_and_revive(service):
    service.run(service.engine.die)
    service.wait_for(lambda: service.link.state is LinkState.DEAD)
    service.run(setattr, service.engine, "held", False)
    service.call(service.restart())


def stable(answer):
    """Without what differs from one request to the next."""
    if "event-stream" not in answer.headers["content-type"]:
        return {**answer.json(), "id": ""}
    made = events(answer)
    made[0]["message"]["id"] = ""
    return made


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_is_the_same_over_a_death(make_service, stream):
    service = make_service(recovery=Resume())
    service.text = TEXT
    service.run(setattr, service.engine, "held", True)
    box = []
    fields = {"stream": stream, "stop_sequences": ["dog"]}
    thread = threading.Thread(target=lambda: box.append(ask(service, **fields)))
    thread.start()
    service.wait_for(lambda: len(service.engine.running) == 1)
    for _ in range(5):
        service.run(service.engine.step)
    kill_and_revive(service)
    thread.join()
    assert service.link.figures.resumed == 1
    assert stable(box[0]) == stable(ask(service, **fields))
