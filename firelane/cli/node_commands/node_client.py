"""Requests of the command line to a running node."""

from __future__ import annotations

import argparse
import json
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from firelane.errors import FirelaneError, MachineError, UsageError
from firelane.server.options.shared import GIB, positive_float

if TYPE_CHECKING:
    from http.client import HTTPResponse
    from urllib.error import HTTPError

    from firelane.server.progress import Display

DEFAULT_URL = "http://127.0.0.1:8000"
UNAUTHORIZED = 401
ANSWER_S = 30.0
"""For the answer itself, beside what it may wait for."""
FORGET_S = 600.0
PULL_S = 3600.0
"""Between two lines about a pull, which are told when something has come."""


def add_server(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", default=DEFAULT_URL, help="the node's address (default: %(default)s)")
    _add_key(parser)


def add_optional_server(parser: argparse.ArgumentParser) -> None:
    """Add the options of commands that need no node."""
    parser.add_argument("--url", help="the address of a node, whose model of that name is meant")
    _add_key(parser)


def _add_key(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--api-key", metavar="KEY", help="of a tenant with admin = true (default: OPENAI_API_KEY)"
    )


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="one of the node's names")
    parser.add_argument(
        "--timeout-s",
        type=positive_float,
        default=30.0,
        metavar="S",
        help="how long requests may take to end, or the model to come (default: %(default)g)",
    )
    add_server(parser)


def change(arguments: argparse.Namespace, action: str) -> int:
    """Do something to a model, and print what it is then. Raises FirelaneError."""
    body = {"model": arguments.model, "timeout_s": arguments.timeout_s}
    path = f"/admin/models/{action}"
    report = _ask(arguments, path, body, within_s=arguments.timeout_s + ANSWER_S)
    print(f"{report['name']}: {report['state']}, {_gib(report['held_bytes'])} of memory")
    return 0


def pull(arguments: argparse.Namespace, progress: Display) -> None:
    """Have a node fetch the files of its model. Raises FirelaneError."""
    with _opened(arguments, "/api/pull", {"model": arguments.source}, within_s=PULL_S) as lines:
        for line in lines:
            told = json.loads(line)
            if "error" in told:
                raise FirelaneError(told["error"])
            if "total" in told:
                progress("pull", told["completed"], told["total"], "B")


def remove(arguments: argparse.Namespace) -> str:
    """Have a node remove the files of its model; returns what the model is then. Raises FirelaneError."""
    body = {"model": arguments.source}
    return _ask(arguments, "/admin/models/remove", body, within_s=PULL_S)["state"]


def shown(arguments: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """A server's words about its model of this name, without one of its first: that name, and the answer in
    Ollama's form. Raises FirelaneError."""
    name = arguments.model
    if name is None:
        name = _ask(arguments, "/v1/models", None, within_s=ANSWER_S)["data"][0]["id"]
    return name, _ask(arguments, "/api/show", {"model": name}, within_s=ANSWER_S)


def forget_tenant(arguments: argparse.Namespace) -> dict[str, Any]:
    """Have a server erase a tenant's pages; returns its answer. Raises FirelaneError."""
    body = {"tenant": arguments.name, "timeout_s": FORGET_S}
    return _ask(arguments, "/admin/tenants/forget", body, within_s=FORGET_S + ANSWER_S)


def roles(arguments: argparse.Namespace) -> list[str]:
    """Engines of a server's model, a line each, after one of them has got its role, if one is named. Raises
    FirelaneError."""
    from urllib.parse import quote

    if arguments.engine is None:
        query = "" if arguments.model is None else f"?model={quote(arguments.model)}"
        found = _ask(arguments, f"/admin/engines{query}", None, within_s=ANSWER_S)
    elif arguments.role is None:
        raise UsageError(f"engine {arguments.engine}: say prefill, decode or both behind it")
    else:
        body = {"engine": arguments.engine, "role": arguments.role, "model": arguments.model}
        found = _ask(arguments, "/admin/engines/role", body, within_s=ANSWER_S)
    return [
        f"{one['name']}: {one['role']}, {one['state']}, requests {one['requests']}"
        for one in found["engines"]
    ]


def report(arguments: argparse.Namespace) -> list[str]:
    """A table, a line each. Raises FirelaneError."""
    found = _ask(arguments, "/admin/models", None, within_s=ANSWER_S)
    rows = [("MODEL", "STATE", "MEMORY", "REQUESTS", "WAITING", "IDLE", "")]
    rows += [
        (
            *(", ".join([one["name"], *one["aliases"]]), one["state"], _gib(one["held_bytes"])),
            *(str(one["requests"]), str(one["waiting"]), f"{one['idle_s']:.0f} s"),
            one["reason"] or ("pinned" if one["pinned"] else ""),
        )
        for one in found["models"]
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows]
    budget = found["budget_bytes"]
    of = "" if budget is None else f" of {_gib(budget)}"
    return [*(line.rstrip() for line in lines), f"memory {_gib(found['used_bytes'])}{of}"]


def key_advice(key: str, how: str = "--api-key, or OPENAI_API_KEY") -> str:
    """The words for a server that refuses a key, or that there is none."""
    return (
        f"the server knows no such key: check {how}"
        if key
        else f"the server asks for a key: give it with {how}"
    )


def _gib(nbytes: int) -> str:
    return f"{nbytes / GIB:.2f} GiB"


def _ask(
    arguments: argparse.Namespace, path: str, body: dict[str, Any] | None, *, within_s: float
) -> dict[str, Any]:
    with _opened(arguments, path, body, within_s=within_s) as answer:
        return json.load(answer)


@contextmanager
def _opened(
    arguments: argparse.Namespace, path: str, body: dict[str, Any] | None, *, within_s: float
) -> Generator[HTTPResponse]:
    """An answer. within_s: between two of its bytes. Raises FirelaneError."""
    url = arguments.url.rstrip("/")
    import http.client
    import urllib.error
    import urllib.request

    from firelane import env

    headers = {"content-type": "application/json"}
    key = arguments.api_key or env.api_key()
    if key:
        headers["authorization"] = f"Bearer {key}"
    data = None if body is None else json.dumps(body).encode()
    try:
        request = urllib.request.Request(url + path, data, headers)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=within_s) as answer:
            yield answer
    except urllib.error.HTTPError as error:
        raise FirelaneError(_message(error, key)) from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        advice = "start one, or give --url" if url == DEFAULT_URL else "is it running there?"
        raise MachineError(f"{url}: no node answers there ({reason}): {advice}") from error


def _message(error: HTTPError, key: str) -> str:
    if error.code == UNAUTHORIZED:
        return key_advice(key)
    try:
        said = json.load(error)["error"]
        return said if isinstance(said, str) else said["message"]
    except (ValueError, KeyError, TypeError):
        return f"status {error.code}"
