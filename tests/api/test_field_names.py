"""Other servers' names of fields: given this server's names, or refused, whatever request they come in."""

from __future__ import annotations

import functools
import json

import msgspec
import pytest

from firelane.api.chat import ChatRequest
from firelane.api.completions import CompletionRequest
from firelane.api.decode import BodyDecoder
from firelane.api.reading.field_names import ALIASES, COMPANIONS, REFUSED
from firelane.api.sampling import AnswerFields
from firelane.api.stored.responses import ResponsesRequest
from firelane.errors import RequestError
from firelane.gateway.apis.llama_server.types import FillRequest, InfillRequest, NativeCompletionRequest
from firelane.gateway.apis.messages.types import MessagesRequest
from firelane.gateway.apis.ollama.types import OllamaChatRequest, OllamaGenerateRequest
from firelane.gateway.apis.workers_ai.types import RunRequest

USER = [{"role": "user", "content": "x"}]
GOOD = {
    ChatRequest: {"messages": USER},
    CompletionRequest: {"prompt": "x"},
    ResponsesRequest: {"input": "x"},
    MessagesRequest: {"messages": USER, "max_tokens": 9},
    OllamaChatRequest: {"model": "m", "messages": USER},
    OllamaGenerateRequest: {"model": "m", "prompt": "x"},
    RunRequest: {"prompt": "x"},
    NativeCompletionRequest: {"prompt": "x"},
    InfillRequest: {"input_prefix": "x", "input_suffix": "y"},
}
ASKS = {"text": {"format": {"type": "json_object"}}, "output_config": {"format": {"type": "json_schema"}}}
EVERY_TYPE = pytest.mark.parametrize("kind", GOOD)


decoder_of = functools.cache(BodyDecoder)


def decoded(kind, *, strict=False, **fields):
    body = json.dumps({**GOOD[kind], **fields}).encode()
    request, left_out = decoder_of(kind).decode_given(body, strict=strict)
    request.check()
    return request, left_out


def names(kind) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(kind)}


def test_every_request_that_generates_text_is_here():
    def below(kind):
        return {kind}.union(*map(below, kind.__subclasses__()))

    bases = {kind.__mro__[i] for kind in GOOD for i in range(1, 3)}
    assert below(AnswerFields) - set(GOOD) <= bases | {FillRequest}  # which nobody sends


@EVERY_TYPE
@pytest.mark.parametrize("strict", [False, True])
def test_what_is_not_there_is_refused_by_name(kind, strict):
    for name in set(REFUSED) - names(kind):
        with pytest.raises(RequestError) as error:
            decoded(kind, strict=strict, **{name: ASKS.get(name, {"odd": [7]})})
        assert error.value.param == name
        assert error.value.code == "unsupported_parameter"
        assert ": " in str(error.value)


@EVERY_TYPE
def test_what_asks_for_nothing_is_taken_without_a_word(kind):
    neutral = {
        name: refusal.neutral[0] if isinstance(refusal.neutral, tuple) and refusal.neutral else None
        for name, refusal in REFUSED.items()
        if name not in names(kind)
    }
    given = {**neutral, "top_n_sigma": -1, "adaptive_target": -1.0, "text": {"verbosity": "low"}}
    given = {name: value for name, value in given.items() if name not in names(kind)}
    companions = dict.fromkeys(COMPANIONS, 0.5)
    assert decoded(kind, **given, **companions) == (decoded(kind)[0], [])


@EVERY_TYPE
@pytest.mark.parametrize("strict", [False, True])
def test_other_names(kind, strict):
    given = {"min_new_tokens": 3, "regex": "[xy]", "sampling_seed": 11, "stop_sequences": ["END"]}
    own = {"min_tokens": 3, "guided_regex": "[xy]"}
    named = {"seed": 11, "stop": ["END"], "max_tokens": 7, "repetition_penalty": 1.5}
    if kind is not MessagesRequest:  # it must name a limit
        given["max_new_tokens"] = 7
    else:
        named["max_tokens"] = 9
    request, left_out = decoded(kind, strict=strict, **given, repeat_penalty=1.5)
    assert left_out == []
    assert {name: getattr(request, name) for name in own} == own
    for name, value in named.items():
        found = request
        for part in kind.OWN_NAMES.get(name, name).split("."):
            found = getattr(found, part)
        assert found == value, name


@EVERY_TYPE
def test_names_lead_to_fields_or_to_refusals(kind):
    for alias, common in ALIASES.items():
        target = kind.OWN_NAMES.get(common, common)
        assert target.partition(".")[0] in names(kind) or common in REFUSED, alias


@pytest.mark.parametrize("value", [-1, -2, None])
def test_no_limit(value):
    asked = decoded(CompletionRequest, n_predict=value)[0].max_tokens
    assert asked == (None if value is None else -1)
    assert decoded(ResponsesRequest, n_predict=value)[0].max_output_tokens is None
    assert decoded(OllamaGenerateRequest, max_new_tokens=value)[0].options is None


def test_two_names_of_one_field():
    assert decoded(ChatRequest, ebnf='root ::= "a"', grammar='root ::= "a"')[0].grammar == 'root ::= "a"'
    with pytest.raises(RequestError, match="different things") as error:
        decoded(ChatRequest, n_predict=4, max_tokens=5)
    assert error.value.param == "n_predict"
    with pytest.raises(RequestError, match="`options`"):
        decoded(OllamaChatRequest, options=[1], stop=["x"])


@EVERY_TYPE
@pytest.mark.parametrize("outer", ["extra_body", "sampling_params", "parameters"])
def test_constraints_in_an_object_that_is_not_read(kind, outer):
    for inner in ({"regex": "a"}, {"min_tokens": 3}, {"typical_p": 0.4}, {"lora_path": "a"}):
        (name,) = inner
        with pytest.raises(RequestError) as error:
            decoded(kind, **{outer: {**inner, "odd": 1}})
        assert error.value.param == f"{outer}.{name}"
    assert decoded(kind, **{outer: {"odd": 1, "typical_p": 1.0, "regex": None}})[1] == [outer]


def test_options_of_ollama_elsewhere():
    with pytest.raises(RequestError, match="put it there"):
        decoded(ChatRequest, options={"num_predict": 4})
    with pytest.raises(RequestError, match="put it there"):
        decoded(OllamaChatRequest, options={"guided_regex": "a"})
    request, left_out = decoded(
        OllamaChatRequest, options={"num_predict": 4, "seed": 3, "mirostat": 0, "x": 1}
    )
    assert (request.options.num_predict, request.options.seed, left_out) == (4, 3, ["options.x"])


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}


@pytest.mark.parametrize(
    "kind", [ChatRequest, CompletionRequest, MessagesRequest, ResponsesRequest, RunRequest]
)
def test_format_of_ollama(kind):
    assert decoded(kind, format=SCHEMA)[0].json_schema == SCHEMA
    assert decoded(kind, format="json")[0].response_format.type == "json_object"
    assert decoded(kind, format="") == (decoded(kind)[0], [])
    with pytest.raises(RequestError, match="response_format"):
        decoded(kind, format="yaml")


def test_unknown_names_are_still_left_out_and_named():
    assert decoded(MessagesRequest, typical_p=1, ebnf="x", rid="a")[1] == ["rid"]
    with pytest.raises(RequestError, match="unknown field `rid`"):
        decoded(MessagesRequest, strict=True, typical_p=1, ebnf="x", rid="a")
