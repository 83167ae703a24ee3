"""An engine process and what it forks, seen from outside."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec
import pytest

from firelane.bench.server import descendants
from firelane.sandbox import seccomp
from firelane.sandbox.system import this_machine
from firelane.wire.frames import Submit
from tests.node.engine_gateway import Gateway, engine_config, request

MACHINE = this_machine()
pytestmark = pytest.mark.skipif(
    MACHINE is None or not seccomp.has_filters(MACHINE), reason="this kernel takes no seccomp filters"
)


def status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def test_an_engine_serves_confined_and_its_helpers_end_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")

    async def scenario() -> None:
        async with Gateway(engine_config(tmp_path)) as gateway:
            ready = await gateway.connect()
            own = status(ready.pid)
            while len(helpers := descendants(ready.pid)) < 4:  # one forks another one
                await asyncio.sleep(0.01)
            names = sorted(status(helper)["Name"] for helper in helpers)
            assert names == ["compile_helper"] * 2 + ["grammar_helper"] * 2
            assert (own["NoNewPrivs"], own["Seccomp"]) == ("1", "2")
            environ = Path(f"/proc/{ready.pid}/environ").read_bytes()
            assert b"PATH=" in environ
            assert b"HF_TOKEN" not in environ
            for thread in Path(f"/proc/{ready.pid}/task").iterdir():
                filters = status(int(thread.name)).get("Seccomp_filters", "2")
                assert filters in ("2", "3")  # changes of files are forbidden a moment later
            for helper in helpers:
                assert status(helper).get("Seccomp_filters", "1") == "1"  # it may start programs
            gateway.send(Submit([request(1)]))
            assert len((await gateway.tokens_of(1))[0]) == 6
            gateway.supervisor.kill()
            while not gateway.exits:
                await asyncio.sleep(0)
            for helper in helpers:
                while (Path("/proc") / str(helper)).exists() and status(helper)["State"][0] not in "ZX":
                    await asyncio.sleep(0.001)

    asyncio.run(scenario())


def test_an_engine_without_a_sandbox_keeps_its_rights(tmp_path: Path) -> None:
    config = msgspec.structs.replace(engine_config(tmp_path), sandbox=False)

    async def scenario() -> None:
        async with Gateway(config) as gateway:
            ready = await gateway.connect()
            assert status(ready.pid)["NoNewPrivs"] == status(os.getpid())["NoNewPrivs"]
            assert descendants(ready.pid) == []

    asyncio.run(scenario())
