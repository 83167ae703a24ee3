"""Requests of Dynamo's frontend on their way to the engine."""

from __future__ import annotations

import itertools
import json
from array import array
from typing import Any

import msgspec
import pytest

from firelane.errors import RequestError
from firelane.wire.frames import Grammar, NewRequest, Sampling
from firelane_dynamo.requests import REST_OF_CONTEXT, new_requests

PROMPT = [5, 6, 70000]


def made(request_id: str = "a", *, prefill_only: bool = False, **parts: Any) -> list[NewRequest]:
    request = {"token_ids": PROMPT, "model": "m", **parts}
    ids = itertools.count(7)
    return new_requests(request, request_id, lambda: next(ids), {"top_k": 20}, prefill_only=prefill_only)


def sampling(**options: Any) -> Sampling:
    return made(sampling_options=options)[0].sampling


def test_plain() -> None:
    (request,) = made()
    assert request.id == 7
    assert request.prompt == array("i", PROMPT).tobytes()
    assert msgspec.structs.replace(request.sampling, seed=0) == Sampling(top_k=20, max_tokens=REST_OF_CONTEXT)
    assert (request.salt, request.grammar, request.client) == (b"", None, ("", ""))


def test_empty_parts_are_as_missing_ones() -> None:
    parts = ("sampling_options", "stop_conditions", "output_options", "routing", "extra_args")
    assert made(**dict.fromkeys(parts)) == made()


def test_packed_prompt() -> None:
    assert made(token_ids=array("i", PROMPT).tobytes())[0].prompt == made()[0].prompt


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"top_k": -1}, {"top_k": 0}),
        ({"top_k": 3}, {"top_k": 3}),
        ({"seed": 9}, {"seed": 9}),
        ({"temperature": 0.5}, {"temperature": 0.5}),
        ({"top_p": 0.25, "min_p": 0.125}, {"top_p": 0.25, "min_p": 0.125}),
        ({"presence_penalty": 1.0}, {"presence_penalty": 1.0}),
        ({"frequency_penalty": -1.0}, {"frequency_penalty": -1.0}),
        ({"repetition_penalty": 1.5}, {"repetition_penalty": 1.5}),
        ({"logit_bias": {"3": 2.0}}, {"logit_bias": [(3, 2.0)]}),
        ({"use_beam_search": False, "length_penalty": 1.0, "best_of": 1}, {}),
    ],
)
def test_sampling_options(options, expected) -> None:
    found = sampling(**options)
    assert {name: getattr(found, name) for name in expected} == expected


def test_stops() -> None:
    conditions = {"stop_token_ids": [9], "stop_token_ids_hidden": [4, 9], "max_tokens": 8, "min_tokens": 2}
    found = made(stop_conditions=conditions, eos_token_ids=[1])[0].sampling
    assert (found.stop_token_ids, found.max_tokens, found.min_tokens) == ([1, 4, 9], 8, 2)
    free = made(stop_conditions=conditions | {"ignore_eos": True}, eos_token_ids=[1])[0].sampling
    assert free.stop_token_ids == [9]


def test_a_request_that_goes_on_may_have_fewer_tokens_to_come_than_it_had_to_make() -> None:
    found = made(stop_conditions={"max_tokens": 3, "min_tokens": 8})[0].sampling
    assert (found.max_tokens, found.min_tokens) == (3, 3)


def test_seed_is_the_same_wherever_the_request_goes_on() -> None:
    assert made("a")[0].sampling.seed == made("a", token_ids=[5, 6, 7, 8])[0].sampling.seed
    assert made("a")[0].sampling.seed != made("b")[0].sampling.seed
    assert sampling(seed=-1).seed >= 0


def test_choices_differ_in_their_seed() -> None:
    many = made(sampling_options={"n": 3, "seed": 5}, output_options={"prompt_logprobs": 1})
    assert [one.sampling.seed for one in many] == [5, 6, 7]
    assert [one.sampling.prompt_logprobs for one in many] == [1, -1, -1]
    assert [one.id for one in many] == [7, 8, 9]
    assert len({id(one.prompt) for one in many}) == 1


def test_prefill_draws_one_token() -> None:
    options, conditions = {"n": 3}, {"max_tokens": 9, "min_tokens": 4}
    (one,) = made(prefill_only=True, sampling_options=options, stop_conditions=conditions)
    assert (one.sampling.max_tokens, one.sampling.min_tokens) == (1, 1)


def test_logprobs() -> None:
    found = made(output_options={"logprobs": 3, "prompt_logprobs": 0})[0].sampling
    assert (found.logprobs, found.prompt_logprobs) == (3, 0)


def test_cache_salt() -> None:
    assert made(routing={"cache_salt": "acme"})[0].salt == b"acme"


@pytest.mark.parametrize(
    ("guide", "grammar"),
    [
        ({"regex": "[0-9]+"}, Grammar("regex", "[0-9]+")),
        ({"choice": ["yes", "no"]}, Grammar("lark", 'start: "yes" | "no"\n')),
        ({"grammar": 'root ::= "a"'}, Grammar("gbnf", 'root ::= "a"')),
        ({"json": {"type": "integer"}}, Grammar("json_schema", '{"type": "integer"}')),
        ({"json": '{"type": "integer"}'}, Grammar("json_schema", '{"type": "integer"}')),
    ],
    ids=lambda value: str(value)[:24],
)
def test_guided_decoding(guide, grammar) -> None:
    (request,) = made(sampling_options={"guided_decoding": guide})
    assert request.grammar == grammar
    assert request.client == ("", "a")


@pytest.mark.parametrize("as_text", [False, True])
def test_structural_tags(as_text: bool) -> None:
    tag = {"type": "structural_tag", "format": {"type": "const_string", "value": "a"}}
    guide = {"structural_tag": json.dumps(tag) if as_text else tag}
    (request,) = made(sampling_options={"guided_decoding": guide})
    assert request.grammar == Grammar("structural_tag", '{"type": "const_string", "value": "a"}')


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"sampling_options": {"temperature": -1.0}}, "temperature"),
        ({"sampling_options": {"temperature": "hot"}}, "temperature"),
        ({"sampling_options": {"n": 0}}, r"\$\.n"),
        ({"sampling_options": {"best_of": 4}}, "best_of"),
        ({"sampling_options": {"use_beam_search": True}}, "use_beam_search"),
        ({"sampling_options": {"bad_words_token_ids": [[1]]}}, "bad_words"),
        ({"sampling_options": {"guided_decoding": {"structural_tag": {}, "regex": "a"}}}, ""),
        ({"sampling_options": {"guided_decoding": {"structural_tag": {"a": 1}}}}, "structural_tag"),
        ({"sampling_options": {"guided_decoding": {"regex": "a", "json": {}}}}, "ask for different things"),
        ({"sampling_options": {"guided_decoding": {"json": "{"}}}, "not valid JSON"),
        ({"output_options": {"logprobs": 1000}}, "logprobs is 1000"),
        ({"token_ids": [2**31]}, "token_ids"),
        ({"multi_modal_data": {"image_url": [{}]}}, "multi_modal_data"),
        ({"prompt_embeds": "AAAA"}, "prompt_embeds"),
    ],
    ids=lambda value: str(value)[:48],
)
def test_refusals(parts, says) -> None:
    if not says:
        assert made(**parts)
        return
    with pytest.raises(RequestError, match=says):
        made(**parts)
