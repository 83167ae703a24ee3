"""Engines of several hosts that have pages from each other over TCP, under a real client: it gets what one
engine would have given, whichever of them is killed."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from e2e_support import MODEL, metric, wait_until

from firelane.bench.server import ServerProcess

Connect = Callable[[ServerProcess], openai.OpenAI]
TEXT = "import os\n\ndef walk(path):\n    for name in os.listdir(path):\n"
PROMPT = "# engines of several hosts\n" + TEXT * 14
BODY: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 60,
    "seed": 5,
    "top_p": 0.9,
    "stream": True,
    "stream_options": {"include_usage": True},
    "extra_body": {"ignore_eos": True},
}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]


class HostEngines:
    """Engines of these roles, each behind `firelane engine`, and a gateway in front of them."""

    def __init__(
        self,
        environ: dict[str, str],
        stack: contextlib.ExitStack,
        key: Path,
        roles: tuple[str, ...],
        options: tuple[str, ...] = (),
    ) -> None:
        key.write_text("0123456789abcdef0123456789abcdef\n")
        self.engines: list[ServerProcess] = []
        for role in roles:
            pages = ["--kv-transfer-address", f"127.0.0.1:{free_port()}", "--cluster-key-file", str(key)]
            sizes = ["--threads", "1", "--kv-cache-gib", "0.1", "--role", role]
            engine = ServerProcess([*sizes, *pages], command="engine", environ=environ)
            stack.callback(engine.stop)
            self.engines.append(engine)
        addresses = [engine.url for engine in self.engines]
        self.server = ServerProcess(["--engines", *addresses, *options], environ=environ)
        stack.callback(self.server.stop)
        self.all_up()

    def all_up(self) -> None:
        wait_until(lambda: metric(self.server.url, "firelane:replicas_up") == len(self.engines))

    def count(self, name: str) -> float:
        return metric(self.server.url, f"firelane:{name}_total")

    def kill_engine(self, place: int) -> None:
        os.kill(self.engines[place].engine_pids[0], signal.SIGKILL)


def parts(client: openai.OpenAI, prompt: str, **fields: Any) -> Iterator[str]:
    """Texts of a stream, and the usage as the last one."""
    for chunk in client.completions.create(prompt=prompt, **BODY, **fields):
        if chunk.choices:
            yield chunk.choices[0].text
        if chunk.usage is not None:
            yield chunk.usage.model_dump_json()


def whole(client: openai.OpenAI) -> tuple[str, str]:
    """The text of a stream, and its usage, but for drafts: they follow the times of steps."""
    *texts, usage = parts(client, PROMPT)
    return "".join(texts), re.sub(r'"(accepted|rejected)_prediction_tokens":\d+', "", usage)


@pytest.fixture(scope="module")
def expected(cpu_server: ServerProcess) -> list[tuple[str, str]]:
    """The answers of one engine that does all: the first time, and when it has the prompt in its cache."""
    with openai.OpenAI(base_url=f"{cpu_server.url}/v1", api_key="none", max_retries=0) as client:
        return [whole(client), whole(client)]


@pytest.fixture(scope="module")
def apart(environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostEngines]:
    with contextlib.ExitStack() as stack:
        key = tmp_path_factory.mktemp("key") / "cluster"
        yield HostEngines(environ, stack, key, ("prefill", "decode"))


def pages_travel(engines: HostEngines, client: openai.OpenAI) -> None:
    """Pages of some prompt come in time, which a busy machine does not promise for each."""
    number = iter(range(1000))

    def hands_over() -> bool:
        before = engines.count("kv_pulls_ok")
        list(parts(client, f"# {next(number)}\n{PROMPT}"))
        return engines.count("kv_pulls_ok") > before

    wait_until(hands_over)


def test_a_prompt_is_computed_at_one_host_and_goes_on_at_another(
    apart: HostEngines, connect: Connect, expected: list[tuple[str, str]]
) -> None:
    client = connect(apart.server)
    assert [whole(client), whole(client)] == expected
    assert '"cached_tokens":0' not in expected[1][1]
    assert apart.count("handed_over") == 2
    pages_travel(apart, client)
    report = httpx.get(f"{apart.server.url}/admin/engines").json()["engines"]
    assert [(one["name"], one["role"]) for one in report] == [
        (apart.engines[0].url, "prefill"),
        (apart.engines[1].url, "decode"),
    ]


@pytest.mark.parametrize("place", [0, 1], ids=["prefill", "decode"])
def test_streams_go_on_when_an_engine_is_killed(
    apart: HostEngines, connect: Connect, expected: list[tuple[str, str]], place: int
) -> None:
    client, deaths = connect(apart.server), apart.count("engine_deaths")
    stream = parts(client, PROMPT)
    text = next(stream)
    apart.kill_engine(place)
    *texts, _ = stream
    assert text + "".join(texts) == expected[0][0]
    wait_until(lambda: apart.count("engine_deaths") > deaths)
    apart.all_up()
    pages_travel(apart, client)


def test_a_busy_host_gives_its_pages_to_an_idle_one(
    environ: dict[str, str], connect: Connect, tmp_path: Path
) -> None:
    options = ("--share-pages", "--routing", "least-requests")
    with contextlib.ExitStack() as stack:
        engines = HostEngines(environ, stack, tmp_path / "key", ("both", "both"), options)
        client = connect(engines.server)

        def peer_tokens(prompt: str) -> int:
            """Ask for the prompt twice, the second time while the first engine is busy with it. Return how
            many of its tokens the second engine had from a peer."""
            whole = {"model": MODEL, "prompt": prompt, "temperature": 0}
            first = client.completions.create(**whole, max_tokens=8)
            busy = client.completions.create(
                **whole, max_tokens=1000, stream=True, extra_body={"ignore_eos": True}
            )
            next(iter(busy))
            second = client.completions.create(**whole, max_tokens=8)
            busy.close()
            assert second.choices[0].text == first.choices[0].text
            details = second.usage.prompt_tokens_details if second.usage is not None else None
            tiers = getattr(details, "cached_tokens_by_tier", None) or {}
            return tiers.get("peer", 0)

        number = iter(range(100))
        wait_until(lambda: peer_tokens(f"# {next(number)}\n{TEXT * 24}") >= 256)
        assert engines.count("kv_pulls_ok") > 0
        assert engines.count("handed_over") == 0
