"""Tokens of texts and texts of tokens, for data sets: by a tokenizer's file, or by the server under load."""

from __future__ import annotations

import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from firelane.bench.workload import BenchRequest
from firelane.errors import MachineError, UsageError


class Tokens(Protocol):
    def count(self, text: str) -> int:
        """Tokens of a text."""
        ...

    def text(self, ids: list[int]) -> str:
        """About as many tokens when it is encoded again: pieces may join."""
        ...


class LocalTokens:
    """path: of a tokenizer.json, or of a model's directory. Raises UsageError."""

    def __init__(self, path: Path) -> None:
        from tokenizers import Tokenizer

        file = path / "tokenizer.json" if path.is_dir() else path
        try:
            self._tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises that itself
            raise UsageError(f"--tokenizer {path}: {error}") from error

    def count(self, text: str) -> int:
        return len(self._tokenizer.encode(text).ids)

    def text(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids)


class ServerTokens:
    """Asks /tokenize and /detokenize. Its MachineError says what to do without."""

    def __init__(self, url: str, model: str, *, api_key: str = "") -> None:
        self._url, self._model = url.rstrip("/").removesuffix("/v1"), model
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    def count(self, text: str) -> int:
        return self._ask("/tokenize", "count", int, prompt=text)

    def text(self, ids: list[int]) -> str:
        return self._ask("/detokenize", "prompt", str, tokens=ids)

    def _ask(self, path: str, name: str, kind: type[Any], **fields: Any) -> Any:
        address, body = self._url + path, msgspec.json.encode({"model": self._model, **fields})
        try:
            request = urllib.request.Request(address, body, self._headers)
            with urllib.request.urlopen(request, timeout=60) as reply:
                return msgspec.convert(msgspec.json.decode(reply.read())[name], kind)
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise MachineError(f"{address}: {error}; name the model's directory with --tokenizer") from error


def as_text(requests: Sequence[BenchRequest], tokens: Tokens) -> list[BenchRequest]:
    """The same requests with their prompts as text, for endpoints that take no token ids."""
    return [
        BenchRequest(
            prompt=request.prompt if isinstance(request.prompt, str) else tokens.text(request.prompt),
            output_tokens=request.output_tokens,
        )
        for request in requests
    ]
