"""Hosts that attach to a group: the proof that they know its secret, and the differences that are refused."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from firelane import env
from firelane.backends.cpu.ranks.hosts import wires as host_wires
from firelane.backends.cpu.ranks.hosts.attach import (
    HostFacts,
    Listener,
    WireFacts,
    cluster_key,
    connect,
    difference,
)
from firelane.backends.cpu.ranks.hosts.remote import TcpHosts
from firelane.backends.cpu.ranks.hosts.steps import HEADER_INTS, StepEncoder, body_bytes, decode
from firelane.backends.cpu.ranks.hosts.wires import HostWires
from firelane.contract import SlotState, StepInputs, StepLimits
from firelane.engine_config import HostsConfig
from firelane.errors import MachineError, PeerLostError, UsageError
from firelane.link.greeting import Refused, Welcome
from firelane.link.line import Line
from firelane.parallel.hosts import HostLayout
from firelane.parallel.ranks import RankLayout
from tests.backends.cpu_harness import Chunk, fill

KEY = b"0123456789abcdef"
LEADER = HostFacts(
    version="1",
    host=0,
    hosts=2,
    options={"--weights": "auto"},
    model="m",
    program="p",
    isa="avx512",
    available_bytes=1 << 30,
)
OTHER = msgspec.structs.replace(LEADER, host=1)
LIMITS = StepLimits(
    max_num_seqs=3,
    max_num_batched_tokens=64,
    max_output_rows=8,
    max_model_len=256,
    block_size=16,
    num_blocks=64,
)
PLACE = HostsConfig(count=2, own=0, address="127.0.0.1", port=0, timeout_s=10.0)
SETTINGS = env.Environment(cache_dir=Path("/"), cluster_key=KEY.decode())


def soon() -> float:
    return time.monotonic() + 120


def beside(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Runs in a thread; its result, or what it raised."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, found


@pytest.fixture
def listener():
    made = Listener("127.0.0.1", 0, KEY)
    yield made
    made.close()


def test_hosts_of_one_secret_find_each_other(listener: Listener) -> None:
    thread, found = beside(lambda: connect(("127.0.0.1", listener.port), KEY, soon(), WireFacts()))
    server, facts = listener.accept(soon())
    thread.join()
    assert facts == WireFacts()
    (client,) = found
    client.send(OTHER)
    assert server.receive(HostFacts) == OTHER
    client.close()
    with pytest.raises(PeerLostError, match=r"127\.0\.0\.1 has closed the connection"):
        server.receive(HostFacts)
    server.close()


def test_another_secret_is_refused_and_the_next_host_is_taken(listener: Listener) -> None:
    def connects() -> Line:
        with pytest.raises(UsageError, match=r"keys of the cluster differ: .*--cluster-key-file"):
            connect(("127.0.0.1", listener.port), b"another one", soon(), WireFacts())
        with socket.create_connection(("127.0.0.1", listener.port)) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(64))
        return connect(("127.0.0.1", listener.port), KEY, soon(), WireFacts())

    thread, found = beside(connects)
    listener.accept(soon())[0].close()
    thread.join()
    assert isinstance(found[0], Line)
    found[0].close()
    assert listener.refusal.startswith("; one at 127.0.0.1 was refused: the keys of the cluster differ")


def test_nobody_there(listener: Listener) -> None:
    listener.close()
    with pytest.raises(PeerLostError, match=r"unable to reach 127\.0\.0\.1:"):
        connect(("127.0.0.1", listener.port), KEY, time.monotonic() + 0.01, WireFacts())


def test_a_place_that_is_taken(listener: Listener) -> None:
    with pytest.raises(MachineError, match=r"--master-addr 127\.0\.0\.1:.*: unable to listen"):
        Listener("127.0.0.1", listener.port, KEY)


def test_garbage_of_a_host_ends_its_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        first = socket.create_connection(server.getsockname())
        made = [Line(first), Line(server.accept()[0])]
    made[0].send_bytes(b"\xff\xff\xff\xff")
    with pytest.raises(PeerLostError, match="what is no message"):
        made[1].receive(HostFacts)
    made[0].send_bytes(b"\x02\0\0\0{]")
    with pytest.raises(PeerLostError, match="what is no message"):
        made[1].receive(HostFacts)
    for one in made:
        one.close()


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"version": "2"}, "host 1 runs Firelane 2, host 0 1: install the same version"),
        ({"hosts": 4}, "host 1 was started with --nnodes 4, host 0 with 2"),
        ({"host": 0}, "--node-rank 0: that of another host than the first is 1 to 1"),
        ({"host": 2}, "--node-rank 2"),
        ({"options": {"--weights": "int8"}}, "host 1 was started with --weights int8, host 0 with auto"),
        ({"model": "n"}, "host 1 has another model than host 0"),
        ({"isa": "avx2"}, "host 1 computes with avx2, host 0 with avx512"),
        ({"program": "q"}, "give all hosts the same --max-model-len"),
    ],
    ids=str,
)
def test_differences_are_named(changed: dict[str, Any], match: str) -> None:
    assert difference(LEADER, OTHER) == ""
    assert match in difference(LEADER, msgspec.structs.replace(OTHER, **changed))


def attached(
    *hellos: HostFacts, count: int = 2, timeout_s: float = 10.0, leaving: int = 0
) -> tuple[list[Any], TcpHosts | str]:
    """Answers to hosts that come one after the other, and the group, or why there is none. leaving: of the
    first ones, that go as soon as they are answered."""
    place = msgspec.structs.replace(PLACE, count=count, timeout_s=timeout_s)
    hosts = TcpHosts(HostLayout(ranks=RankLayout(tp=count), count=count), place, SETTINGS)
    port = hosts.port
    socks: list[Line] = []

    def come() -> list[Any]:
        answers: list[Any] = []
        for hello in hellos:
            socks.append(connect(("127.0.0.1", port), KEY, soon(), WireFacts()))
            socks[-1].send(hello)
            answers.append(socks[-1].receive(Welcome | Refused))
            if len(answers) <= leaving:
                socks[-1].close()
        return answers

    thread, found = beside(come)
    try:
        hosts.attach(msgspec.structs.replace(LEADER, hosts=count))
        result: TcpHosts | str = hosts
    except MachineError as error:
        result = str(error)
    thread.join()
    hosts.close()
    for sock in socks:
        sock.close()
    return found[0], result


def test_a_host_that_differs_is_refused_and_the_right_one_taken() -> None:
    answers, hosts = attached(msgspec.structs.replace(OTHER, version="2"), OTHER)
    assert isinstance(answers[0], Refused)
    assert "install the same version" in answers[0].reason
    assert isinstance(answers[1], Welcome)
    assert isinstance(hosts, TcpHosts)
    assert hosts.available_bytes <= OTHER.available_bytes


def test_a_host_that_never_comes_is_named_with_the_one_that_was_refused() -> None:
    answers, why = attached(msgspec.structs.replace(OTHER, model="n", hosts=4), count=4, timeout_s=0.5)
    assert isinstance(answers[0], Refused)
    assert isinstance(why, str)
    assert "host 1 (rank 1 of the model), host 2 (rank 2 of the model), host 3" in why
    assert "did not attach within 0.5 s: start each there with --nnodes 4" in why
    assert "was refused: host 1 has another model" in why


def test_two_hosts_of_one_number() -> None:
    twice = msgspec.structs.replace(OTHER, hosts=4)
    answers, why = attached(twice, twice, count=4, timeout_s=0.5)
    assert isinstance(answers[0], Welcome)
    assert "--node-rank 1 is there already, from 127.0.0.1" in answers[1].reason
    assert "host 2" in str(why)


def test_a_host_that_leaves_while_others_are_awaited_may_come_again() -> None:
    first, second = (msgspec.structs.replace(OTHER, host=host, hosts=4) for host in (1, 2))
    third = msgspec.structs.replace(OTHER, host=3, hosts=4)
    answers, hosts = attached(first, first, second, third, count=4, timeout_s=120.0, leaving=1)
    assert [type(answer) for answer in answers] == [Welcome] * 4
    assert isinstance(hosts, TcpHosts)


def test_wires_are_made_also_where_a_host_attaches_too_late(listener: Listener) -> None:
    def connects() -> Line:
        late = connect(("127.0.0.1", listener.port), KEY, soon(), WireFacts())
        late.send(OTHER)
        with pytest.raises(PeerLostError):
            late.receive(Welcome)
        late.close()
        facts = WireFacts("g", "sum of ranks 0 and 1")
        return connect(("127.0.0.1", listener.port), KEY, soon(), facts)

    wires = HostWires(HostLayout(ranks=RankLayout(tp=2), count=2), 0, "g")
    thread, found = beside(connects)
    wires.open([], listener, KEY, soon(), lambda: None)
    thread.join()
    assert list(wires.of_ranks()[0].peers) == [1]
    wires.close()
    found[0].close()


def test_wires_are_not_awaited_of_a_host_that_is_gone(listener: Listener, monkeypatch) -> None:
    def check() -> None:
        raise MachineError("host 1 is gone")

    monkeypatch.setattr(host_wires, "CHECK_S", 0.01)
    layout = HostLayout(ranks=RankLayout(tp=2), count=2)
    with pytest.raises(MachineError, match="host 1 is gone"):
        HostWires(layout, 0, "g").open([], listener, KEY, soon(), check)
    with pytest.raises(MachineError, match="host 1 is gone"):
        HostWires(layout, 1, "g").open([("127.0.0.1", 1)], None, KEY, soon(), check)


def test_the_secret(tmp_path: Path) -> None:
    far = msgspec.structs.replace(PLACE, address="192.0.2.1")
    nothing = env.Environment(cache_dir=tmp_path)
    assert cluster_key(far, SETTINGS) == KEY
    assert cluster_key(PLACE, nothing) == b""
    with pytest.raises(UsageError, match="hosts of a cluster share a secret: give --cluster-key-file FILE"):
        cluster_key(far, nothing)
    file = tmp_path / "key"
    from_file = msgspec.structs.replace(far, key_file=file)
    with pytest.raises(UsageError, match=r"--cluster-key-file .*: No such file"):
        cluster_key(from_file, SETTINGS)
    file.write_bytes(b"short\n")
    with pytest.raises(UsageError, match=r"--cluster-key-file .* has 5 bytes"):
        cluster_key(from_file, SETTINGS)
    file.write_bytes(KEY + b"\n")
    assert cluster_key(from_file, nothing) == KEY


def test_steps_cross_with_the_state_that_they_read() -> None:
    """Steps of random pages and tokens: afterwards the other host has what the chunks read. Pages that it has
    are not sent again."""
    rng = np.random.default_rng(5)
    here, there = (SlotState.allocate(LIMITS, 64) for _ in range(2))
    encoder, inputs, found = StepEncoder(LIMITS, here), *(StepInputs.allocate(LIMITS) for _ in range(2))
    steps = [
        [Chunk(0, 0, 33), Chunk(2, 0, 20)],
        [Chunk(2, 20, 1), Chunk(0, 33, 1)],
        [Chunk(0, 34, 1)],
        [Chunk(1, 0, 60, sample=False)],
    ]
    sizes: list[int] = []
    for chunks in steps:
        for chunk in chunks:
            here.tokens[chunk.slot, chunk.start : chunk.start + chunk.length] = rng.integers(
                0, 64, chunk.length
            )
            if chunk.start == 0:
                here.block_tables[:, chunk.slot, :8] = rng.integers(0, 64, 8)
        data = encoder.encode(fill(inputs, chunks))
        header, body = data[: 4 * HEADER_INTS], data[4 * HEADER_INTS :]
        assert len(body) == body_bytes(header)
        sizes.append(len(body))
        decode(header, body, found, there)
        assert (found.num_tokens, found.num_rows) == (inputs.num_tokens, inputs.num_rows)
        assert (found.row_token[: found.num_rows] == inputs.row_token[: found.num_rows]).all()
        for chunk in chunks:
            end = chunk.start + chunk.length
            assert (
                there.tokens[chunk.slot, chunk.start : end] == here.tokens[chunk.slot, chunk.start : end]
            ).all()
            pages = -(-end // LIMITS.block_size)
            assert (
                there.block_tables[:, chunk.slot, :pages] == here.block_tables[:, chunk.slot, :pages]
            ).all()
    assert sizes[2] == 4 * (7 + 5 + 1)  # nothing of the pages
