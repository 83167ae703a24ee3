"""Requests of the OpenAI API, asked of a server on this machine."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import httpx

FORWARDED = ("x-session-affinity", "traceparent", "tracestate")
"""Headers of a client's request that the server understands."""
CONNECT_S = 30.0


class AnswerError(Exception):
    """The server's refusal. status: of HTTP; kind: the OpenAI API's type of error."""

    def __init__(self, message: str, *, status: int, kind: str) -> None:
        super().__init__(message)
        self.status, self.kind = status, kind


class Relay:
    """Owns its connections."""

    def __init__(self, url: str, transport: httpx.AsyncBaseTransport | None = None) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        timeout = httpx.Timeout(None, connect=CONNECT_S)
        self._client = httpx.AsyncClient(
            base_url=url, limits=limits, timeout=timeout, transport=transport, trust_env=False
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def answer(self, path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Any:
        """The answer in one piece, decoded. Raises AnswerError."""
        try:
            response = await self._client.post(path, json=body, headers=_forwarded(headers))
        except httpx.TransportError as error:
            raise _gone(error) from error
        _check(response.status_code, response.content)
        return response.json()

    async def stream(
        self, path: str, body: Mapping[str, Any], headers: Mapping[str, str]
    ) -> AsyncGenerator[str, None]:
        """Events, each as "data: …\\n\\n". Raises AnswerError before the first one; a stream that breaks
        later ends with an event that says so."""
        begun = False
        try:
            request = self._client.stream("POST", path, json=body, headers=_forwarded(headers))
            async with request as response:
                if response.status_code != 200:
                    _check(response.status_code, await response.aread())
                async for line in response.aiter_lines():
                    if line.startswith("data:"):
                        begun = True
                        yield f"{line}\n\n"
        except httpx.TransportError as error:
            gone = _gone(error)
            if not begun:
                raise gone from error
            problem = {"message": str(gone), "type": gone.kind, "param": None, "code": gone.status}
            yield f"data: {json.dumps({'error': problem})}\n\n"


def _forwarded(headers: Mapping[str, str]) -> dict[str, str]:
    lower = {name.lower(): value for name, value in headers.items()}
    return {name: lower[name] for name in FORWARDED if name in lower}


def _gone(error: httpx.TransportError) -> AnswerError:
    return AnswerError(
        f"the server has gone ({type(error).__name__}): try again", status=503, kind="server_error"
    )


def _check(status: int, content: bytes) -> None:
    if status == 200:
        return
    try:
        error = json.loads(content)["error"]
        message, kind = str(error["message"]), str(error.get("type") or "error")
    except (ValueError, KeyError, TypeError, AttributeError):
        message, kind = content.decode(errors="replace")[:1000] or f"status {status}", "error"
    raise AnswerError(message, status=status, kind=kind)
