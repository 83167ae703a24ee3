"""A node with a model whose engines have roles: its answers are those of one engine, whichever of them is
killed, and they go to standby and come back together."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from e2e_support import TIMEOUT_S, metric, wait_until

from firelane.bench.server import ServerProcess

PROMPT = "import os\n\ndef walk(path):\n    for name in os.listdir(path):\n" * 12
NODE = """
[engine]
kv_cache_gib = 0.04
[models.one]
[models.roles]
prefill = 1
decode = 1
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("roles") / "node.toml"
    path.write_text(NODE)
    return path


@pytest.fixture(scope="module")
def server(environ: dict[str, str], config: Path) -> Iterator[ServerProcess]:
    with ServerProcess([str(config)], command="node", environ=environ) as made:
        yield made


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def begun(client: openai.OpenAI, model: str, prompt: str = PROMPT) -> Iterator[str]:
    """The parts of a stream, the first of which is there."""
    chunks = client.completions.create(
        model=model, prompt=prompt, max_tokens=40, seed=5, stream=True, extra_body={"ignore_eos": True}
    )
    return (chunk.choices[0].text for chunk in chunks if chunk.choices)


def text(client: openai.OpenAI, model: str, prompt: str = PROMPT) -> str:
    return "".join(begun(client, model, prompt))


@pytest.fixture(scope="module")
def expected(server: ServerProcess) -> str:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        return text(client, "one")


def post(server: ServerProcess, path: str, **body: Any) -> dict[str, Any]:
    answer = httpx.post(f"{server.url}/admin/{path}", json={"model": "roles", **body}, timeout=TIMEOUT_S)
    assert answer.status_code == 200, answer.text
    return answer.json()


def roles(server: ServerProcess) -> list[tuple[str, str, str]]:
    report = httpx.get(f"{server.url}/admin/engines?model=roles", timeout=TIMEOUT_S).json()
    return [(one["name"], one["role"], one["state"]) for one in report["engines"]]


def engines(server: ServerProcess) -> dict[str, int]:
    """Process ids, by the roles that they began with."""
    found: dict[str, int] = {}
    for pid in server.engine_pids:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        for role in ("prefill", "decode"):
            if f"role={role}".encode() in command:
                found.setdefault(role, pid)
    return found


def hands_over(server: ServerProcess, client: openai.OpenAI) -> None:
    """Pages come from one engine to the other."""
    number = iter(range(1000))

    def pulled() -> bool:
        before = metric(server.url, "firelane:kv_pulls_ok_total")
        text(client, "roles", f"# {next(number)} {os.urandom(4).hex()}\n{PROMPT}")
        return metric(server.url, "firelane:kv_pulls_ok_total") > before

    wait_until(pulled)


def page_memory(pid: int) -> tuple[int, int]:
    """Bytes of the engine's own pages, and how many such files it has mapped, those of others among them."""
    mapped = Path(f"/proc/{pid}/maps").read_text().count("firelane-kv (deleted)")
    files = [fd for fd in Path(f"/proc/{pid}/fd").iterdir() if "firelane-kv " in str(fd.readlink())]
    return sum(fd.stat().st_blocks * 512 for fd in files), mapped


def test_answers_are_those_of_one_engine(server: ServerProcess, client: openai.OpenAI, expected: str) -> None:
    assert text(client, "roles") == expected
    wait_until(lambda: roles(server) == [("0", "prefill", "ready"), ("1", "decode", "ready")])
    hands_over(server, client)
    assert text(client, "roles") == expected
    report = httpx.get(f"{server.url}/admin/models", timeout=TIMEOUT_S).json()["models"]
    held = {one["name"]: one["held_bytes"] for one in report}
    assert held["roles"] > 1.1 * held["one"]  # weights of both engines, and the same cache


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_streams_go_on_without_an_engine(
    server: ServerProcess, client: openai.OpenAI, expected: str, role: str
) -> None:
    stream = begun(client, "roles")
    first = next(stream)
    os.kill(engines(server)[role], signal.SIGKILL)
    assert first + "".join(stream) == expected
    wait_until(lambda: [state for *_, state in roles(server)] == ["ready"] * 2)


def test_all_engines_go_to_standby_and_come_back(
    server: ServerProcess, client: openai.OpenAI, expected: str
) -> None:
    hands_over(server, client)
    pids = engines(server).values()
    assert [page_memory(pid)[1] for pid in pids] == [2, 2]
    assert all(nbytes > 0 for nbytes, _ in map(page_memory, pids))
    assert post(server, "models/sleep")["state"] == "standby"
    assert [page_memory(pid) for pid in pids] == [(0, 1)] * 2
    assert text(client, "roles") == expected
    assert list(engines(server).values()) == list(pids)
    hands_over(server, client)


def test_roles_change_under_a_stream(server: ServerProcess, client: openai.OpenAI, expected: str) -> None:
    stream = begun(client, "roles")
    first = next(stream)
    for engine, role in (("1", "prefill"), ("0", "decode")):
        post(server, "engines/role", engine=engine, role=role)
    assert first + "".join(stream) == expected
    assert text(client, "roles") == expected
    assert roles(server) == [("0", "decode", "ready"), ("1", "prefill", "ready")]


def test_an_engine_that_dies_in_standby_ends_all_and_others_come(
    server: ServerProcess, client: openai.OpenAI, expected: str
) -> None:
    assert post(server, "models/sleep")["state"] == "standby"
    os.kill(engines(server)["decode"], signal.SIGKILL)
    wait_until(lambda: not engines(server))
    assert text(client, "roles") == expected


def test_a_new_file_has_another_number_of_engines(
    server: ServerProcess, client: openai.OpenAI, expected: str, config: Path
) -> None:
    stream = begun(client, "roles")
    first = next(stream)
    config.write_text(NODE.replace("decode = 1", "decode = 2"))
    server.process.send_signal(signal.SIGHUP)
    assert first + "".join(stream) == expected
    wait_until(lambda: "reload_complete" in server.log)
    assert text(client, "roles") == expected
    assert [role for _, role, _ in roles(server)].count("prefill") <= 1
    wait_until(lambda: [role for _, role, _ in roles(server)] == ["prefill", "decode", "decode"])
    config.write_text(NODE.replace("decode = 1", ""))
    server.process.send_signal(signal.SIGHUP)
    wait_until(lambda: "line 6: models.roles.prefill: prefill alone" in server.log)
