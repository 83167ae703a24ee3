"""Large bodies decoded in parts: the same request, or the same refusal, as in one piece."""

from __future__ import annotations

import json
from array import array
from typing import Any

import pytest

from firelane.api.chat import ChatRequest
from firelane.api.completions import CompletionRequest
from firelane.api.decode import BodyDecoder
from firelane.api.embeddings import EmbeddingRequest
from firelane.api.models import DetokenizeRequest
from firelane.api.reading import slices
from firelane.api.stored.responses import ResponsesRequest
from firelane.errors import RequestError

TEXT = "é\u2028\\n" * 4000
TURN = {"role": "user", "content": TEXT}
MANY = [{"role": "user", "content": f"{i}" * 90} for i in range(900)]
GOOD: list[tuple[Any, dict[str, Any]]] = [
    (ChatRequest, {"messages": MANY, "max_tokens": 3, "stop": ["a", "b"]}),
    (ChatRequest, {"messages": [TURN, {"role": "user", "content": "a"}, TURN]}),
    (ChatRequest, {"messages": [TURN, TURN]}),
    (ChatRequest, {"messages": [{"role": "user", "content": "a"}], "stop": ["a" * 900] * 16}),
    (CompletionRequest, {"prompt": [[i] * 50 for i in range(1000)], "n": 2}),
    (CompletionRequest, {"prompt": [[1], [], [2**31 - 1] * 9000]}),
    (CompletionRequest, {"prompt": list(range(90_000))}),
    (CompletionRequest, {"prompt": [f"text {i}" * 20 for i in range(900)]}),
    (CompletionRequest, {"prompt": "a" * 90_000}),
    (EmbeddingRequest, {"input": [[7] * 40] * 2000}),
    (DetokenizeRequest, {"tokens": [0] * 100_000}),
    (ResponsesRequest, {"input": MANY, "instructions": "é"}),
]
WRONG: list[tuple[Any, bytes]] = [
    (ChatRequest, json.dumps({"messages": [*MANY, {"role": 5, "content": ""}]}).encode()),
    (ChatRequest, json.dumps({"messages": [*MANY, {"content": ""}]}).encode()),
    (ChatRequest, json.dumps({"messages": MANY, "max_tokens": -2}).encode()),
    (ChatRequest, json.dumps({"messages": MANY * 80}).encode()),
    (ChatRequest, json.dumps({"messages": [{}] * 30_000}).encode()),
    (ChatRequest, json.dumps({"messages": {"a": "b" * 90_000}}).encode()),
    (ChatRequest, json.dumps({"messages": MANY}).encode()[:-2]),
    (ChatRequest, json.dumps({"messages": MANY}).encode() + b"x"),
    (ChatRequest, json.dumps([MANY]).encode()),
    (ChatRequest, json.dumps({"messages": MANY}).encode().replace(b"77", b"\xff", 1)),
    (CompletionRequest, json.dumps({"prompt": [[1]] * 30_000 + [[-1]]}).encode()),
    (CompletionRequest, json.dumps({"prompt": [1] * 30_000 + [2**31]}).encode()),
    (CompletionRequest, json.dumps({"prompt": [1] * 30_000 + [1.5]}).encode()),
    (CompletionRequest, b'{"prompt": [' + b"1," * 30_000 + b"]}"),
    (CompletionRequest, b'{"prompt": [' + b" " * 70_000 + b"]"),
    (CompletionRequest, b"[" * 90_000),
    (ResponsesRequest, json.dumps({"input": [*MANY, {"type": "nothing"}, 5]}).encode()),
]


def plain(value: Any) -> Any:
    if isinstance(value, array):
        return value.tolist()
    return [plain(item) for item in value] if isinstance(value, list) else value


def fields_of(request: Any) -> dict[str, Any]:
    return {name: plain(getattr(request, name)) for name in request.__struct_fields__}


@pytest.mark.parametrize("as_bytearray", [False, True])
@pytest.mark.parametrize(("kind", "body"), GOOD, ids=range(len(GOOD)))
def test_good_bodies(kind: Any, body: dict[str, Any], as_bytearray: bool) -> None:
    decoder: BodyDecoder[Any] = BodyDecoder(kind)
    data = (bytearray if as_bytearray else bytes)(json.dumps(body, indent=1).encode())
    request, names = decoder.decode_large(data, strict=True)
    assert fields_of(request) == fields_of(decoder.decode(data))
    assert names == []
    request.check()


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(("kind", "body"), WRONG, ids=range(len(WRONG)))
def test_wrong_bodies(kind: Any, body: bytes, strict: bool) -> None:
    decoder: BodyDecoder[Any] = BodyDecoder(kind)
    with pytest.raises(RequestError) as whole:
        decoder.decode(body)
    with pytest.raises(RequestError) as parts:
        decoder.decode_large(body, strict=strict)
    assert (str(parts.value), parts.value.param) == (str(whole.value), whole.value.param)


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{**turn, "odd": 1} for turn in MANY]},
        {"messages": [*MANY, {"role": "user", "content": "", "odd": 1}], "other": {}},
        {"messages": MANY, "other": 1},
        {"odd": "x" * 90_000, "messages": MANY[:2]},
    ],
)
def test_unknown_fields(body: dict[str, Any]) -> None:
    decoder: BodyDecoder[ChatRequest] = BodyDecoder(ChatRequest)
    data = json.dumps(body).encode()
    whole, parts = decoder.decode_given(data, strict=False), decoder.decode_large(data, strict=False)
    assert fields_of(parts[0]) == fields_of(whole[0])
    assert sorted(parts[1]) == sorted(whole[1])
    with pytest.raises(RequestError, match="unknown field"):
        decoder.decode_large(data, strict=True)


def test_no_part_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    real = slices.ListField.decode

    def decode(field: slices.ListField, part: bytes, *, strict: bool) -> Any:
        sizes.append(len(part))
        return real(field, part, strict=strict)

    monkeypatch.setattr(slices.ListField, "decode", decode)
    for body in ({"prompt": [[5] * 100] * 2000}, {"prompt": [5] * 200_000}, {"prompt": ["a" * 99] * 5000}):
        sizes.clear()
        BodyDecoder(CompletionRequest).decode_large(json.dumps(body).encode(), strict=True)
        assert len(sizes) > 9
        assert max(sizes) < 2 * slices.PART_BYTES


def test_token_ids_are_kept_as_numbers_of_four_bytes() -> None:
    decoder: BodyDecoder[CompletionRequest] = BodyDecoder(CompletionRequest)
    request, _ = decoder.decode_large(json.dumps({"prompt": [[5] * 100] * 2000}).encode(), strict=True)
    prompt: Any = request.prompt
    assert {type(item) for item in prompt} == {array}
    assert prompt[0].itemsize == 4
