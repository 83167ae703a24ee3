"""Some hundreds of requests that mean harm, or were written by somebody who knows no better.

Each case: method, path, body as bytes, and the statuses that are right for it. Where harmless and harmful
look the same from outside (a schema that an engine may or may not manage to compile), two are right. Never
right are 5xx and silence.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import Any

from tests.gateway.hostile_apis import blocks, items, ollama
from tests.gateway.hostile_cases import Case, case, raw_field, spoilt
from tests.gateway.hostile_fields import (
    CHAT,
    COMPLETIONS,
    DETOKENIZE,
    EMBEDDINGS,
    FURTHER,
    GOOD,
    NOT_NUMBERS,
    NUMBERS,
    OLLAMA_EMBED,
    OLLAMA_GENERATE,
    OWN_NUMBERS,
    RERANK,
    RESPONSES,
    RUN,
    TEXT_PATHS,
    TOKENIZE,
    USER,
    WIDER,
    WRONG_TYPES,
)
from tests.gateway.hostile_grammars import EITHER, GRAMMARS, PATTERNS, REFUSED, SCHEMAS, TAKEN


def numbers() -> Iterator[Case]:
    for path, names in OWN_NUMBERS.items():
        for name in names:
            own = WIDER.get((path, name)) or NUMBERS.get(name) or FURTHER[name]
            for value in (*own, *NOT_NUMBERS):
                if (path, name, value) != (CHAT, "logprobs", True):
                    yield spoilt(path, name, value)
            for word in ("NaN", "-Infinity", "1e999", "0x10", "9" * 5000, "1.0e", "-"):
                yield raw_field(path, name, word)


def types() -> Iterator[Case]:
    for path, fields in WRONG_TYPES.items():
        for name, values in fields.items():
            for value in values:
                yield spoilt(path, name, value, REFUSED | {404} if name == "model" else REFUSED)


def bodies() -> Iterator[Case]:
    """Bodies that are no JSON object, or hardly."""
    for path, good in GOOD.items():
        text = json.dumps(good).encode()
        deep = b"[" * 100_000
        wrong: dict[str, bytes] = {
            "empty": b"",
            "blank": b" \r\n\t",
            "null": b"null",
            "list": b"[]",
            "number": b"1",
            "word": b"true",
            "string": b'"x"',
            "cut": text[:-1],
            "two": text + text,
            "tail": text + b"x",
            "comment": b"// x\n" + text,
            "quotes": text.replace(b'"', b"'"),
            "bom": b"\xef\xbb\xbf" + text,
            "utf-16": text.decode().encode("utf-16"),
            "latin-1": text.replace(b"x", b"\xe4") if b"x" in text else b"\xff",
            "overlong": b'{"a": "\xc0\xaf"}',
            "gzip": gzip.compress(text),
            "nul": b"\0" * 1000,
            "deep list": deep,
            "deep object": b'{"a":' * 100_000,
            "deep unknown": text[:-1] + b', "unknown": ' + deep + b"]" * 100_000 + b"}",
            "many fields": b"{" + b",".join(b'"f%d": 1' % i for i in range(5000)) + b"}",
            "form": b"prompt=x&max_tokens=1",
            "prototype": text[:-1] + b', "__proto__": {}, "__class__": 1}',
        }
        for name, body in wrong.items():
            yield case(path, name, body)


def texts() -> Iterator[Case]:
    """Texts that are odd but are texts: answered, or refused for their length."""
    odd = {
        "nul": "a\0b",
        "right to left": "\u202e\u2066x\u2069",
        "joined": "\U0001f468\u200d" * 100,
        "marks": "e" + "\u0301" * 400,
        "noncharacters": "\uffff\ufffe\U0010ffff",
        "special tokens": "<|eos|><|bos|><|user|>",
        "template": "{{ 7 * 7 }}{% for i in range(10**9) %}x{% endfor %}",
        "lines": "\r\n\r\n" * 20,
        "long": "x " * 40_000,
    }
    fields = {
        COMPLETIONS: "prompt",
        RESPONSES: "input",
        RUN: "prompt",
        TOKENIZE: "prompt",
        EMBEDDINGS: "input",
        OLLAMA_GENERATE: "prompt",
        OLLAMA_EMBED: "input",
        RERANK: "query",
    }
    for name, text in odd.items():
        for path, where in fields.items():
            yield case(path, name, GOOD[path] | {where: text}, EITHER)
        yield case(CHAT, name, GOOD[CHAT] | {"messages": [{"role": "user", "content": text}]}, EITHER)
        yield case(COMPLETIONS, f"stop {name}", GOOD[COMPLETIONS] | {"stop": [text[:1000]]}, EITHER)
    for path, where in fields.items():  # halves of a pair: no text at all
        yield raw_field(path, where, '"\\ud800"', EITHER)
        yield raw_field(path, where, '"\\udc00\\ud800 x"', EITHER)


def messages() -> Iterator[Case]:
    def called(arguments: str = "{}") -> dict[str, Any]:
        return {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}

    def assistant(*calls: Any) -> list[Any]:
        return [{"role": "assistant", "tool_calls": list(calls)}]

    odd: dict[str, tuple[Any, frozenset[int]]] = {
        "image": ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], REFUSED),
        "audio": ([{"role": "user", "content": [{"type": "input_audio"}]}], REFUSED),
        "part without text": ([{"role": "user", "content": [{"type": "text"}]}], REFUSED),
        "number": ([{"role": "user", "content": 1}], REFUSED),
        "unknown field": ([{"role": "user", "content": "x", "colour": 1}], REFUSED),
        "old call": ([{"role": "assistant", "function_call": {"name": "f", "arguments": "x"}}], TAKEN),
        "users call": ([{"role": "user", "content": "x", "tool_calls": [called()]}], REFUSED),
        "call of text": (assistant(called("x")), TAKEN),
        "call of list": (assistant(called("[]")), TAKEN),
        "call of nothing": (assistant({"id": "c"}), REFUSED),
        "many calls": (assistant(*[called()] * 1025), REFUSED),
        "deep arguments": (assistant(called('{"a":' * 2000)), EITHER),
        "many": (USER * 70_000, REFUSED | {413}),
        "tool alone": ([{"role": "tool", "content": "x", "tool_call_id": "c"}], EITHER),
        "assistant alone": ([{"role": "assistant", "content": "x"}], EITHER),
        "empty": ([{"role": "user", "content": ""}], EITHER),
        "no parts": ([{"role": "user", "content": []}], EITHER),
        "name": ([{"role": "user", "content": "x", "name": "\u202e" * 500}], EITHER),
    }
    for name, (value, right) in odd.items():
        yield case(CHAT, f"messages: {name}", GOOD[CHAT] | {"messages": value}, right)
        yield case(TOKENIZE, f"messages: {name}", {"messages": value}, right)


def grammars() -> Iterator[Case]:
    for name, (schema, right) in SCHEMAS.items():
        form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
        yield case(CHAT, f"schema {name}", GOOD[CHAT] | {"response_format": form}, right)
        yield case(COMPLETIONS, f"guided_json {name}", GOOD[COMPLETIONS] | {"guided_json": schema}, right)
        text = {"format": {"type": "json_schema", "name": "n", "schema": schema}}
        yield case(RESPONSES, f"schema {name}", GOOD[RESPONSES] | {"text": text}, right)
        run = {"type": "json_schema", "json_schema": schema}
        yield case(RUN, f"schema {name}", GOOD[RUN] | {"response_format": run}, right)
        tool = {"type": "function", "function": {"name": "f", "parameters": schema, "strict": True}}
        tools = {"tools": [tool], "tool_choice": "required"}
        yield case(CHAT, f"tool {name}", GOOD[CHAT] | tools, right)
    for name, pattern in PATTERNS.items():
        yield case(CHAT, f"guided_regex {name}", GOOD[CHAT] | {"guided_regex": pattern}, EITHER)
        asked = {"structured_outputs": {"regex": pattern}}
        yield case(COMPLETIONS, f"regex {name}", GOOD[COMPLETIONS] | asked, EITHER)
    for name, grammar in GRAMMARS.items():
        yield case(COMPLETIONS, f"grammar {name}", GOOD[COMPLETIONS] | {"guided_grammar": grammar}, EITHER)
        asked = {"structured_outputs": {"grammar": grammar}}
        yield case(CHAT, f"grammar {name}", GOOD[CHAT] | asked, EITHER)
    for value in ([], [""], ["a"] * 2000, "a", [1], ["a" * 5000]):
        yield spoilt(CHAT, "guided_choice", value)
        yield spoilt(CHAT, "structured_outputs", {"choice": value})
    for value in ({}, {"json": {}, "regex": "a"}, {"structural_tag": {}}, {"other": 1}, 1):
        yield spoilt(CHAT, "structured_outputs", value)


def tools() -> Iterator[Case]:
    one = {"type": "function", "function": {"name": "f"}}
    odd: dict[str, Any] = {
        "many": [one | {"function": {"name": f"f{i}"}} for i in range(1025)],
        "twice": [one, one],
        "name with space": [one | {"function": {"name": "a b"}}],
        "no name": [one | {"function": {}}],
        "empty name": [one | {"function": {"name": ""}}],
        "long name": [one | {"function": {"name": "f" * 129}}],
        "parameters of list": [one | {"function": {"name": "f", "parameters": []}}],
        "unknown field": [one | {"function": {"name": "f", "colour": 1}}],
    }
    for name, value in odd.items():
        yield case(CHAT, f"tools: {name}", GOOD[CHAT] | {"tools": value})
        flat = [{"type": "function", **tool["function"]} for tool in value]
        right = EITHER if name == "unknown field" else REFUSED  # tools of others have fields of their own
        yield case(RESPONSES, f"tools: {name}", GOOD[RESPONSES] | {"tools": flat}, right)
        yield case(RUN, f"tools: {name}", GOOD[RUN] | {"tools": value})
    for choice in ({"type": "function", "function": {"name": "g"}}, {"type": "allowed_tools"}, {}, "f"):
        yield case(CHAT, f"choice {choice}", GOOD[CHAT] | {"tools": [one], "tool_choice": choice})
        flat = [{"type": "function", "name": "f"}]
        yield case(RESPONSES, f"choice {choice}", GOOD[RESPONSES] | {"tools": flat, "tool_choice": choice})


def crowds() -> Iterator[Case]:
    """More than a server gives to one request."""
    yield spoilt(COMPLETIONS, "prompt", ["x"] * 20_000)
    yield spoilt(COMPLETIONS, "prompt", [[1]] * 20_000)
    yield case(COMPLETIONS, "n of many", GOOD[COMPLETIONS] | {"prompt": ["x"] * 100, "n": 128})
    yield spoilt(COMPLETIONS, "prompt", [7] * 100_000)
    yield spoilt(COMPLETIONS, "logit_bias", {str(i): 1 for i in range(20_000)})
    yield spoilt(EMBEDDINGS, "input", ["x"] * 20_000)
    yield spoilt(DETOKENIZE, "tokens", [7] * 100_000, EITHER)
    yield spoilt(CHAT, "stop", ["s" * 1024] * 16, EITHER)
    for path in TEXT_PATHS:
        yield case(path, "large", b'{"prompt": "' + b"x" * (33 << 20) + b'"}', frozenset({413, 400}))


def paths() -> Iterator[Case]:
    """Paths, methods and queries."""
    for method in ("GET", "PUT", "DELETE", "PATCH", "HEAD", "TRACE"):
        for path in (COMPLETIONS, RESPONSES, RUN, DETOKENIZE):
            yield case(path, method, b"", frozenset({405, 400}), method=method)
    for path in (
        *("/v1/../../etc/passwd", "/v1/%2e%2e/%2e%2e/etc/passwd", "/v1//models", "/v1/models/", "/V1/MODELS"),
        *("/v1/models/%00", "/v1/models/%ff", "/v1/models/..%2f..", "/v1/models/" + "m" * 5000, "/v2", "/%"),
        *("/v1/responses/", "/v1/responses/%00", "/v1/responses/" + "r" * 5000, "/v1/responses/x/y/z"),
        *("/v1/responses/x/input_items", "/v1/files/x", "/v1/files/..%2f..%2fetc", "/v1/batches/x"),
        *(
            "/client/v4/accounts//ai/run/toy",
            "/client/v4/accounts/a/ai/run/",
            "/static/../x",
            "/assets/%2e%2e",
        ),
    ):
        yield case(path, "GET", b"", frozenset({404, 405, 400}), method="GET")
    for query in (
        *("limit=-1", "limit=99999999999999999999", "limit=1e3", "limit=\u0661", "order=up", "after=%00"),
        *("&".join(f"a{i}=1" for i in range(200)), "=", "limit", "limit=5&limit=x", "%"),
    ):
        url = "/v1/responses/x/input_items?" + query
        yield case(url, "GET", b"", frozenset({404, 400}), method="GET")
    for model in ("none", "%00", "@cf/" + "m" * 4000, "@cf/a/b/c/d", "%F0%9F%98%80", "a%0d%0ab"):
        yield case("/client/v4/accounts/a/ai/run/" + model, "model", GOOD[RUN], frozenset({400, 404}))
    yield case("/client/v4/accounts/a/ai/run/toy", "lora", GOOD[RUN] | {"lora": "x"}, frozenset({405}))


def headers() -> Iterator[Case]:
    for name, value in (
        *(
            ("authorization", "Bearer"),
            ("authorization", "Basic eDp5"),
            ("authorization", "Bearer " + "k" * 9000),
        ),
        *(("content-type", "text/plain"), ("content-type", "multipart/form-data; boundary=x")),
        *(("x-request-id", "a" * 5000), ("x-request-id", "\x7f\x01"), ("accept", "nothing/at-all")),
        *(("content-encoding", "gzip"), ("x-session-affinity", "s" * 5000), ("expect", "tea")),
        *(("connection", "upgrade"), ("upgrade", "h2c"), ("origin", "null"), ("cookie", "a=b;" * 1000)),
    ):
        right = frozenset({200, 400, 401, 403, 415, 417})
        yield case(COMPLETIONS, f"{name}: {value[:30]}", GOOD[COMPLETIONS], right, headers={name: value})


GROUPS = {
    group.__name__: list(group())
    for group in (
        *(
            numbers,
            types,
            bodies,
            texts,
            messages,
            items,
            blocks,
            ollama,
            grammars,
            tools,
            crowds,
            paths,
            headers,
        ),
    )
}
