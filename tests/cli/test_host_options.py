"""Options for ranks on several hosts, and the command of a host that has no engine."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from firelane.cli import build_parser
from firelane.engine_config import EngineConfig, HostsConfig
from firelane.errors import UsageError
from firelane.options import Values
from firelane.server.options import hosts as host_options

LWS = {"LWS_LEADER_ADDRESS": "lead.ns", "LWS_GROUP_SIZE": "4", "LWS_WORKER_INDEX": "3"}


@pytest.fixture(autouse=True)
def no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LWS:
        monkeypatch.delenv(name, raising=False)


def parsed(*words: str) -> Values:
    return vars(build_parser().parse_args(["serve", *words]))


def test_one_host_by_default() -> None:
    assert host_options.hosts_config(parsed()) is None
    assert host_options.hosts_config(parsed("--nnodes", "1")) is None


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("10.0.0.1", ("10.0.0.1", 29501)),
        ("10.0.0.1:7", ("10.0.0.1", 7)),
        ("::1", ("::1", 29501)),
        ("[::1]", ("::1", 29501)),
        ("[::1]:7", ("::1", 7)),
    ],
)
def test_addresses(text: str, place: tuple[str, int]) -> None:
    found = host_options.hosts_config(parsed("--nnodes", "2", "--node-rank", "1", "--master-addr", text))
    assert found == HostsConfig(count=2, own=1, address=place[0], port=place[1])


def test_a_group_of_kubernetes_gives_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in LWS.items():
        monkeypatch.setenv(name, value)
    assert host_options.hosts_config(parsed()) == HostsConfig(count=4, own=3, address="lead.ns", port=29501)
    found = host_options.hosts_config(parsed("--node-rank", "0", "--master-addr", "here:5", "--nnodes", "2"))
    assert found == HostsConfig(count=2, own=0, address="here", port=5)


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ("--node-rank 1", "--node-rank is of several hosts: say with --nnodes"),
        ("--master-addr here", "--master-addr is of several hosts"),
        ("--nnodes 2 --node-rank 1", "say with --master-addr where host 0 is"),
        ("--nnodes 2 --master-addr here", "say with --node-rank which one this is"),
        ("--nnodes 2 --node-rank 0 --master-addr here:x", "here:x: is not HOST, HOST:PORT"),
        ("--nnodes 2 --node-rank 0 --master-addr here:70000", "is not HOST, HOST:PORT"),
        ("--nnodes 2 --node-rank 0 --master-addr here --replicas 2", "leave --replicas out"),
        ("--nnodes 2 --node-rank 0 --master-addr here --model other", "serve one model; leave --model out"),
    ],
)
def test_options_that_do_not_fit(words: str, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        host_options.hosts_config(parsed(*words.split()))


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EngineConfig:
    """The config of a host whose ranks are a script, which notes each of its lives in a file."""
    monkeypatch.setattr(host_options, "MODULE", "lives")
    monkeypatch.setattr(host_options, "FIRST_DELAY_S", 0.001)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return EngineConfig(model_dir=tmp_path, cache_dir=tmp_path)


def write_lives(directory: Path, body: str) -> Path:
    """body: with `life`, the number of the life, from 1 on."""
    lives = directory / "lives.txt"
    source = (
        f"import os, sys\nwith open({str(lives)!r}, 'a+') as f:\n    f.write('x'); life = f.tell()\n{body}\n"
    )
    (directory / "lives.py").write_text(source)
    return lives


@pytest.fixture
def handlers():
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
def test_a_host_attaches_again_until_something_is_wrong_with_it(config: EngineConfig, tmp_path: Path) -> None:
    """After a group that ended, and after a kill; a refusal is the end."""
    lives = write_lives(
        tmp_path, "os.kill(os.getpid(), 9) if life == 2 else sys.exit(75 if life == 1 else 2)"
    )
    assert host_options.follow(config) == 2
    assert lives.read_text() == "xxx"


@pytest.mark.usefixtures("handlers")
def test_a_signal_ends_a_host(config: EngineConfig, tmp_path: Path) -> None:
    """Sent by the host's ranks here, once they live."""
    lives = write_lives(
        tmp_path, "import signal, time\nos.kill(os.getppid(), signal.SIGTERM); time.sleep(60)"
    )
    assert host_options.follow(config) == 0
    assert lives.read_text() == "x"
