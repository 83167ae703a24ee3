from __future__ import annotations

import msgspec
import pytest

from firelane.api.chat import ChatRequest
from firelane.api.completions import CompletionRequest
from firelane.api.decode import BodyDecoder
from firelane.api.errors import describe, envelope
from firelane.errors import ContextLengthError, EngineDeadError, FirelaneError, QueueFullError, RequestError

COMPLETION: BodyDecoder[CompletionRequest] = BodyDecoder(CompletionRequest)
CHAT: BodyDecoder[ChatRequest] = BodyDecoder(ChatRequest)


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        (b'{"prompt": "a", "n": "x"}', "n", "`n`: expected `int | null`, got `str`"),
        (b'{"prompt": "a", "stop": ["a", ""]}', "stop[1]", "length >= 1"),
        (b'{"prompt": "a", "logit_bias": {"x": 1}}', "logit_bias", "expected `int`"),
        (b'{"prompt": "a", "stream_options": {"x": 1}}', "stream_options.x", "unknown field"),
        (b'{"prompt": "a", "Temperature": 1}', "Temperature", "unknown field `Temperature`"),
        (b"{}", "prompt", "`prompt` is missing"),
        (b"[]", None, "the body: expected `object`, got `array`"),
        (b"{", None, "not valid JSON"),
    ],
)
def test_errors_name_the_field(body, param, words):
    with pytest.raises(RequestError) as error:
        COMPLETION.decode(body)
    assert error.value.param == param
    assert words in str(error.value)


def test_path_inside_messages():
    with pytest.raises(RequestError) as error:
        CHAT.decode(b'{"messages": [{"role": "user", "content": "x"}, {"role": 1, "content": "x"}]}')
    assert error.value.param == "messages[1].role"


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        (b'"a"', ["a"]),
        (b'""', [""]),
        (b'["a", "b"]', ["a", "b"]),
        (b"[1, 2]", [[1, 2]]),
        (b"[[1], [2, 3]]", [[1], [2, 3]]),
    ],
)
def test_kinds_of_prompt(prompt, prompts):
    assert COMPLETION.decode(b'{"prompt": %b}' % prompt).prompts() == prompts


def test_newer_name_of_max_tokens_wins():
    request = CHAT.decode(
        b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 9, "max_completion_tokens": 4}'
    )
    request.check()
    assert request.max_tokens == 4


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (RequestError("m", param="p"), 400, "invalid_request_error", "invalid_request"),
        (ContextLengthError("m"), 400, "invalid_request_error", "context_length_exceeded"),
        (QueueFullError("m"), 429, "rate_limit_error", "queue_full"),
        (EngineDeadError("m"), 503, "service_unavailable_error", "engine_unavailable"),
        (FirelaneError("secret"), 500, "server_error", "internal_error"),
        (KeyError("secret"), 500, "server_error", "internal_error"),
    ],
)
def test_envelope(error, status, kind, code):
    got, body = describe(error)
    fields = msgspec.json.decode(body)["error"]
    assert (got, fields["type"], fields["code"]) == (status, kind, code)
    assert "secret" not in fields["message"]
    assert list(fields) == ["message", "type", "param", "code"]


def test_envelope_is_one_line():
    assert msgspec.json.decode(envelope(400, 'a "b"\nc'))["error"]["message"] == 'a "b" c'


def test_what_no_type_knows_is_left_out_and_named():
    body = (
        b'{"messages": [{"role": "user", "content": "a", "x": 1}, {"role": "user", "content": "b", "x": 2}],'
        b' "y": {"z": 1}, "stream_options": {"w": 1}, "chat_template_kwargs": {"any": 1}}'
    )
    request, names = CHAT.decode_given(body, strict=False)
    assert names == ["messages[].x", "y", "stream_options.w"]
    assert request.chat_template_kwargs == {"any": 1}
    assert [message.content for message in request.messages] == ["a", "b"]


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages": [{"role": "user", "content": "a"}], "structured_outputs": {"regexp": "a"}}',
        b'{"messages": [{"role": "user", "content": "a"}], "response_format": {"type": "text", "a": 1}}',
        b'{"messages": 5, "x": 1}',
        b'{"x": 1}',
        b'{"messages": [], "x": ' + b"[" * 20_000 + b"}",
    ],
)
def test_what_is_wrong_all_the_same(body):
    with pytest.raises(RequestError):
        CHAT.decode_given(body, strict=False)
