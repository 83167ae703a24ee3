"""Sources of the answers of `chat`: a server of the OpenAI API, or a model of this machine."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from firelane.cli.node_commands.node_client import UNAUTHORIZED, key_advice
from firelane.errors import MachineError, RequestError, UsageError
from firelane.text.deltas import Content, Delta, Reasoning

if TYPE_CHECKING:
    from firelane.llm import LLM

Message = dict[str, str]
Settings = dict[str, Any]
"""Sampling values by their names in SamplingParams, which are those of the APIs."""
CONNECT_S = 10.0
LOOK_S = 1.0
"""For a server that may not be there."""
ERROR_BYTES = 4096
HIDDEN_WORDS = "reasoning_content"
"""Field of the model's messages that has its reasoning."""


class AnswerSource(Protocol):
    """Gives answers. interrupts: Ctrl-C may raise KeyboardInterrupt anywhere inside an answer; elsewhere it
    is looked for between two pieces."""

    name: str
    interrupts: bool

    def answer(self, messages: list[Message], settings: Settings) -> Iterator[Delta]:
        """Content and reasoning in pieces. Closing the iterator stops it. Raises a FirelaneError."""
        ...

    def close(self) -> None: ...


class LocalSource:
    """A model of this machine, which it owns."""

    interrupts = False

    def __init__(self, llm: LLM, name: str, lora: str = "") -> None:
        """lora: as in SamplingParams."""
        self.name = lora or name
        self._llm, self._lora = llm, lora

    @classmethod
    def load(cls, model: str | None, cache_dir: Path, given: Settings) -> LocalSource:
        """Fetch the model where it is not here, and load it. given: settings of its engine. Raises a
        FirelaneError."""
        from firelane.llm import LLM
        from firelane.server.options.served_models import served_name
        from firelane.server.options.shared import first_adapter
        from firelane.server.progress import ProgressDisplay

        display = ProgressDisplay(words={"pack": "packing weights, once"})
        settings = {"max_num_seqs": 1, **given}
        settings["isolated"] = settings.get("sandbox", True)
        try:
            llm = LLM(model, cache_dir=cache_dir, progress=display, **settings)
        finally:
            display.close()
        return cls(llm, served_name(model), first_adapter(settings))

    def answer(self, messages: list[Message], settings: Settings) -> Iterator[Delta]:
        """The chat template says what becomes of the reasoning of earlier answers."""
        params = replace(self._llm.default_sampling("llama.cpp"), max_tokens=None, lora=self._lora)
        return self._llm.stream_deltas(messages, replace(params, **settings))

    def close(self) -> None:
        self._llm.close()


class ServerSource:
    """A server at `url`, which may end in /v1. model "": the first that it serves. Raises UsageError and
    MachineError."""

    interrupts = True

    def __init__(self, url: str, model: str, key: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"--url {url}: give http://HOST:PORT")
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port
        self._path = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"content-type": "application/json", "x-sampling-defaults": "llama.cpp"}
        if key:
            self._headers["authorization"] = f"Bearer {key}"
        self.name = model or self._first_model()

    def answer(self, messages: list[Message], settings: Settings) -> Iterator[Delta]:
        """Reasoning is not sent back: servers differ in what they do with it, and most templates drop it."""
        said = [{k: v for k, v in message.items() if k != HIDDEN_WORDS} for message in messages]
        body = {"model": self.name, "messages": said, "stream": True, **settings}
        connection = self._connect(None)
        try:
            answer = self._ask(connection, "POST", "/v1/chat/completions", json.dumps(body))
            for line in answer:
                yield from _pieces(line)
        except (OSError, http.client.HTTPException) as error:
            raise MachineError(f"the server broke off: {error}") from error
        finally:
            connection.close()

    def close(self) -> None:
        pass

    def _first_model(self) -> str:
        connection = self._connect(CONNECT_S)
        try:
            found = json.loads(self._ask(connection, "GET", "/v1/models", None).read())
            return str(found["data"][0]["id"])
        except (OSError, ValueError, LookupError, TypeError, http.client.HTTPException) as error:
            raise MachineError(f"{self._host}: no list of models from /v1/models; give MODEL") from error
        finally:
            connection.close()

    def _connect(self, timeout_s: float | None) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=CONNECT_S)
        try:
            connection.connect()
        except OSError as error:
            reason = error.strerror or error
            raise MachineError(
                f"{self._host}:{connection.port} does not answer ({reason}): is the server running there?"
            ) from error
        if timeout_s is None:
            connection.sock.settimeout(None)  # an answer takes as long as it takes
        return connection

    def _ask(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: str | None
    ) -> http.client.HTTPResponse:
        """Raises RequestError for an answer that is no success."""
        connection.request(method, self._path + path, body, self._headers)
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            if answer.status == UNAUTHORIZED:
                raise UsageError(key_advice(self._headers.get("authorization", ""), "OPENAI_API_KEY"))
            raise RequestError(_reason(answer.status, answer.read(ERROR_BYTES)))
        return answer


def _pieces(line: bytes) -> Iterator[Delta]:
    """Read the pieces that one line of a stream brings. Raises RequestError for an error that it carries."""
    if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
        return
    try:
        event = json.loads(line[6:])
        if "error" in event:
            raise RequestError(str(event["error"].get("message", "the server failed")))
        for choice in event.get("choices", ()):
            delta = choice.get("delta", {})
            thought = delta.get(HIDDEN_WORDS) or delta.get("reasoning")
            if thought:
                yield Reasoning(thought)
            if delta.get("content"):
                yield Content(delta["content"])
    except (ValueError, AttributeError, TypeError) as error:
        raise MachineError(f"the server's answer cannot be read: {error}") from error


def _reason(status: int, body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return f"the server answered with status {status}"


def served_by(url: str, key: str, names: Sequence[str]) -> str:
    """The first of these names that the server at `url` serves; "" where it has none of them, or does not
    answer. Raises UsageError for a `url` that is none."""
    import urllib.request

    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"--url {url}: give http://HOST:PORT")
    base = url.rstrip("/").removesuffix("/v1")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(f"{base}/v1/models", headers=headers), timeout=LOOK_S
        ) as answer:
            there = {str(model["id"]) for model in json.loads(answer.read())["data"]}
    except (OSError, ValueError, LookupError, TypeError, http.client.HTTPException):
        return ""
    return next((name for name in names if name in there), "")
