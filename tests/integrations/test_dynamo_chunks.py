"""From the engine's reports to Dynamo's chunks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from firelane.errors import EngineDeadError
from firelane.wire.frames import Finished, NewRequest, Sampling, Started, TokenLogprobs
from firelane_dynamo.chunks import Choices


def choices(count: int = 1, **sampling: Any) -> Choices:
    prompt = b"\1\0\0\0" * 3
    return Choices([NewRequest(id=i, prompt=prompt, sampling=Sampling(**sampling)) for i in range(count)])


def read(made: Choices) -> list[dict[str, Any]]:
    async def all_of_it():
        return [chunk async for chunk in made.chunks()]

    return asyncio.run(all_of_it())


USAGE = {
    "prompt_tokens": 3,
    "completion_tokens": 2,
    "total_tokens": 5,
    "prompt_tokens_details": {"cached_tokens": 2},
}


@pytest.mark.parametrize(("reason", "told"), [("stop", "stop"), ("length", "length"), ("abort", "cancelled")])
def test_what_has_come_together_is_one_chunk(reason, told) -> None:
    made = choices()
    (sink,) = made.all
    sink.on_started(Started(1, 2), 0.0)
    sink.on_tokens((40,), 0.0)
    sink.ending(Finished(0, reason))
    sink.on_tokens((41,), 0.0)
    sink.on_end()
    assert read(made) == [
        {"token_ids": [40, 41], "index": 0, "finish_reason": told, "completion_usage": USAGE}
    ]


def test_tokens_come_as_they_are_drawn() -> None:
    made = choices()
    (sink,) = made.all

    async def scenario():
        chunks = made.chunks()
        for token in (40, 41):
            sink.on_tokens((token,), 0.0)
            assert await anext(chunks) == {"token_ids": [token], "index": 0}
        sink.ending(Finished(0, "stop"))
        sink.on_end()
        assert (await anext(chunks))["token_ids"] == []
        assert [chunk async for chunk in chunks] == []

    asyncio.run(scenario())


def test_choices_end_behind_the_tokens_of_all() -> None:
    """Dynamo's frontend reads up to the first end."""
    made = choices(2)
    first, second = made.all
    second.on_tokens((50,), 0.0)
    second.ending(Finished(0, "length"))
    second.on_end()
    first.on_tokens((40,), 0.0)

    async def scenario():
        chunks = made.chunks()
        assert await anext(chunks) == {"token_ids": [40], "index": 0}
        assert await anext(chunks) == {"token_ids": [50], "index": 1}
        first.on_tokens((41,), 0.0)
        first.on_end()
        assert await anext(chunks) == {"token_ids": [41], "index": 0}
        end, last = [chunk async for chunk in chunks]
        assert end.pop("completion_usage")["completion_tokens"] == 3
        assert end == {"token_ids": [], "index": 0, "finish_reason": "stop"}
        assert last == {"token_ids": [], "index": 1, "finish_reason": "length"}

    asyncio.run(scenario())


def test_logprobs() -> None:
    made = choices(logprobs=2, prompt_logprobs=1)
    (sink,) = made.all
    sink.on_logprobs(TokenLogprobs(0, 1, 7, -3.0, [9], [-0.5]))
    sink.on_logprobs(TokenLogprobs(0, 2, 9, -0.5, [9], [-0.5]))
    sink.on_logprobs(TokenLogprobs(0, 3, 40, -1.0, [41, 40], [-0.5, -1.0]))
    sink.on_tokens((40,), 0.0)
    sink.on_end()
    (chunk,) = read(made)
    assert chunk["log_probs"] == [-1.0]
    assert chunk["top_logprobs"] == [
        [
            {"rank": 1, "token_id": 41, "token": None, "logprob": -0.5},
            {"rank": 2, "token_id": 40, "token": None, "logprob": -1.0},
        ]
    ]
    assert chunk["engine_data"]["prompt_logprobs"] == [
        None,
        {"9": {"rank": 1, "logprob": -0.5}, "7": {"logprob": -3.0}},
        {"9": {"rank": 1, "logprob": -0.5}},
    ]


def test_a_failure_ends_the_stream() -> None:
    made = choices(2)
    made.all[1].on_failed(EngineDeadError("gone"))
    with pytest.raises(EngineDeadError, match="gone"):
        read(made)


def test_cancelled() -> None:
    made = choices(2)
    made.all[0].on_tokens((40,), 0.0)
    made.cancel()
    assert [chunk["finish_reason"] for chunk in read(made) if "finish_reason" in chunk] == ["cancelled"] * 2
