"""The process of another rank as the leader sees it: whatever it says, and however it ends."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firelane.backends.ranks import process as rank_process
from firelane.backends.ranks import words
from firelane.backends.ranks.process import RankEndedError, RankProcess
from firelane.backends.ranks.worker import LeaderSocket
from firelane.contract import GivenBack
from firelane.errors import KilledError, MachineError
from tests.parallel.rank_scripts import LOADS, MODULE, READY, SIZES, rested, say, task


@contextmanager
def scripted(monkeypatch: pytest.MonkeyPatch, script: str) -> Iterator[RankProcess]:
    """Rank 1, which has been told its task."""
    monkeypatch.setenv("RANK_SCRIPT", script)
    made = RankProcess(MODULE, task(), ())
    try:
        yield made
    finally:
        made.close()


def ready(monkeypatch: pytest.MonkeyPatch, script: str) -> RankProcess:
    with scripted(monkeypatch, script) as made:
        made.send_task()
        made.await_ready()
        return made


def test_a_rank_that_does_all_that_it_is_told(monkeypatch) -> None:
    with scripted(monkeypatch, f"{READY} {rested(5, 6)} {rested(7, 8)}") as made:
        made.send_task()
        made.await_loaded()
        made.check()
        made.await_ready()
        assert (made.weights_bytes, made.kv_bytes) == SIZES
        ends: list[str] = []
        made.watch(ends.append)
        made.order(3)
        assert made.rested() == GivenBack(5, 6)
        made.order(4)
        assert made.rested() == GivenBack(7, 8)
        made.close()
        made.close()
    assert ends == []


@pytest.mark.parametrize(
    ("script", "match"),
    [
        ("kill", r"^rank 1 of the model ended \(SIGKILL\) before it began to load$"),
        (f"{say(words.READY)} hang", "said b'R' before it began to load, not b'H'$"),
        (f"{say(words.HELLO)} task exit:3", r"ended \(exit code 3\) while it was loading$"),
        (f"{say(words.HELLO)} task {say(b'x')} hang", "said b'x' while it was loading, not b'L'$"),
        (f"{say(words.HELLO)} {say(words.FAILED)} {say(b'no ')} {say(b'room')} exit:1", ": no room$"),
        (f"{say(words.HELLO)} {say(words.FAILED)} {say(bytes([0xC3]))} exit:1", ": \ufffd$"),
        (f"{LOADS} {say(words.FAILED)} {say(b'no kernel')} exit:1", ": no kernel$"),
        (f"{LOADS} {say(words.READY + bytes(7))} kill", r"ended \(SIGKILL\)"),
    ],
)
def test_a_rank_that_does_not_get_ready_is_named_with_the_reason(
    monkeypatch, script: str, match: str
) -> None:
    with pytest.raises(MachineError, match=match):
        ready(monkeypatch, script)


def test_a_rank_that_never_appears(monkeypatch) -> None:
    monkeypatch.setattr(rank_process, "HELLO_S", 0.01)
    monkeypatch.setattr(rank_process, "END_S", 0.01)
    with pytest.raises(MachineError, match=r"did not appear within 0 s: the machine may be overloaded"):
        ready(monkeypatch, "hang")


def test_a_rank_that_is_gone_before_it_is_told_its_task(monkeypatch) -> None:
    with scripted(monkeypatch, "exit:0") as made:
        assert made.ending() == "ended (exit code 0)"
        with pytest.raises(MachineError, match="rank 1 of the model did not take its task"):
            made.send_task()


def test_a_rank_that_ends_where_all_meet_is_seen_by_a_look(monkeypatch) -> None:
    """The leader looks while another thread waits for all ranks in a library."""
    with scripted(monkeypatch, f"{LOADS} order kill") as made:
        made.send_task()
        made.check()
        made.await_loaded()
        made.check()
        made.order(0)
        made.ending()
        with pytest.raises(RankEndedError, match=r"ended \(SIGKILL\) while it was loading"):
            made.check()


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("order kill", "rank 1 of the model ended (SIGKILL)"),
        ("order stop", "rank 1 of the model ended (SIGKILL)"),
        (f"order {say(words.FAILED + b'out of memory')} exit:1", "rank 1 of the model: out of memory"),
        (f"order {say(b'?')} hang", "rank 1 of the model said b'?' in between"),
        (f"order {say(words.RESTED + b'12345')} kill", "rank 1 of the model ended (SIGKILL)"),
    ],
)
def test_a_rank_that_ends_later_is_told_once_and_rests_no_more(monkeypatch, script: str, why: str) -> None:
    monkeypatch.setattr(rank_process, "END_S", 0.1)
    monkeypatch.setattr(rank_process, "STOPPED_S", 0.01)
    with scripted(monkeypatch, f"{READY} {script}") as made:
        made.send_task()
        made.await_ready()
        ends: SimpleQueue[str] = SimpleQueue()
        made.watch(ends.put)
        made.order(1)
        for _ in range(2):
            with pytest.raises(MachineError, match=r"rank 1 of the model.*, on its way to standby"):
                made.rested()
        assert ends.get(timeout=10) == why
        made.order(2)
    assert ends.empty()


@pytest.mark.parametrize(
    ("script", "is_killed"), [("kill", True), ("exit:3", False), ("stop", True), ("crash", False)]
)
def test_a_rank_that_others_kill_is_told_from_one_that_ends_itself(
    monkeypatch, script: str, is_killed: bool
) -> None:
    monkeypatch.setattr(rank_process, "STOPPED_S", 0.01)
    with scripted(monkeypatch, f"{READY} order {script}") as made:
        made.send_task()
        made.await_ready()
        ends: SimpleQueue[str] = SimpleQueue()
        made.watch(ends.put)
        made.order(1)
        ends.get(timeout=60)
        assert made.was_killed == is_killed
        assert isinstance(made.lost("ended"), KilledError) == is_killed


def test_a_rank_that_hangs_is_killed(monkeypatch) -> None:
    monkeypatch.setattr(rank_process, "END_S", 0.01)
    with scripted(monkeypatch, f"{READY} hang") as made:
        made.send_task()
        made.await_ready()
        made.close()
        assert made.ending() == "ended (SIGKILL)"


def test_a_rank_that_is_still_loading_is_killed_at_once(monkeypatch) -> None:
    """It does not look at its socket."""
    monkeypatch.setattr(rank_process, "END_S", 60.0)
    with scripted(monkeypatch, f"{say(words.HELLO)} task hang") as made:
        made.send_task()
        began_s = time.monotonic()
        made.close()
        assert time.monotonic() - began_s < 30
        assert made.ending() == "ended (SIGKILL)"


class Ended:
    """A process that has ended, with what it has said."""

    pid, has_ended, code = 1, True, 1

    def __init__(self, said: bytes) -> None:
        self._said = said

    def connected(self, *_: object, **__: object) -> tuple[Ended, socket.socket]:
        ours, theirs = socket.socketpair()
        with theirs:
            theirs.sendall(self._said)
        return self, ours

    def ends_within(self, timeout_s: float) -> bool:
        del timeout_s
        return True

    def end(self, within_s: float = 0.0) -> int:
        del within_s
        return 1

    def kill(self) -> None:
        pass


WORDS = st.sampled_from([words.HELLO, words.LOADED, words.READY, words.RESTED, words.FAILED])
SAID = st.lists(WORDS | st.binary(max_size=20), max_size=6).map(b"".join)


@settings(max_examples=100, deadline=None)
@given(said=SAID)
def test_whatever_a_rank_says_it_is_ready_or_named(said: bytes) -> None:
    """No words of a rank make the leader wait, or fail with another error. Ready is a rank that has said all
    that it has to, in this order."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rank_process, "Child", Ended(said))
        made = RankProcess(MODULE, task(), ())
    whole = said.startswith(b"HLR") and len(said) >= 3 + words.SIZES.size
    try:
        made.await_ready()
        is_ready = True
    except MachineError as error:
        is_ready = not f"{error}".startswith("rank 1 of the model")
    assert is_ready == whole
    if is_ready:
        assert (made.weights_bytes, made.kv_bytes) == words.SIZES.unpack(said[3:19])
        ends: SimpleQueue[str] = SimpleQueue()
        made.watch(ends.put)
        assert ends.get(timeout=10).startswith("rank 1 of the model")
    made.close()


@settings(max_examples=50, deadline=None)
@given(orders=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=8), rest=st.binary(max_size=7))
def test_a_rank_reads_whole_orders_in_turn(orders: list[int], rest: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"".join(map(words.ORDER.pack, orders)) + rest)
        ours.shutdown(socket.SHUT_WR)
        assert list(LeaderSocket(theirs).orders()) == orders


def test_a_task_crosses_whole() -> None:
    ours, theirs = socket.socketpair()
    sent, found = task(), []
    with ours, theirs:
        rank = threading.Thread(target=lambda: found.append(LeaderSocket(theirs).await_task()))
        rank.start()
        assert ours.recv(1) == words.HELLO
        words.send_task(ours, sent)
        rank.join()
    assert found == [sent]
