"""Every group of ranks must pass these tests, whatever joins its ranks: one suite for all kinds of device."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from firelane.backends.ranks import group as rank_group
from firelane.backends.ranks import words
from firelane.backends.ranks.group import RankGroup
from firelane.backends.ranks.leader import Interconnect, Leader
from firelane.contract import GivenBack, StepInputs
from firelane.errors import MachineError
from tests.parallel.rank_scripts import (
    LIMITS,
    READY,
    SIZES,
    VOCAB,
    FakeExecutor,
    failing,
    leader_of,
    rested,
    say,
    step,
)


@dataclass
class Joined:
    """A group whose other ranks follow a script, and what it is made of."""

    group: RankGroup
    leader: Leader
    interconnect: Interconnect
    executor: FakeExecutor


class RankContract:
    """Tests of a kind of interconnect: a subclass says how one is made."""

    def make(self, executor: FakeExecutor, pp: int, tp: int) -> Interconnect:
        """An interconnect that is connected, for the rank that leads, which runs `executor`."""
        raise NotImplementedError

    def read(self, interconnect: Interconnect, steps: int) -> list[StepInputs]:
        """Read the inputs of the first steps as another rank does."""
        raise NotImplementedError

    @contextmanager
    def joined(
        self, monkeypatch: pytest.MonkeyPatch, script: str, pp: int = 1, tp: int = 2
    ) -> Iterator[Joined]:
        monkeypatch.setenv("RANK_SCRIPT", script)
        executor = FakeExecutor()
        interconnect = self.make(executor, pp, tp)
        leader = leader_of(interconnect, pp=pp, tp=tp)
        with ExitStack() as stack:
            stack.callback(leader.close)
            executor.state = leader.join(LIMITS, VOCAB)
            leader.meet_loaded()
            stack.callback(executor.release)
            group = RankGroup(executor, leader, stack)
        try:
            yield Joined(group, leader, interconnect, executor)
        finally:
            group.release()

    def test_other_ranks_read_the_steps_in_turn(self, monkeypatch) -> None:
        """Three steps are in flight, of which the executor in front takes two."""
        with self.joined(monkeypatch, READY, pp=3, tp=1) as it:
            group = it.group
            assert (group.max_in_flight, group.is_pipelined) == (3, True)
            for tokens in (11, 12, 13):
                group.submit(step(tokens))
            assert it.executor.most == 2
            for inputs, tokens in zip(self.read(it.interconnect, 3), (11, 12, 13), strict=True):
                assert firsts(inputs) == firsts(step(tokens))
            assert [int(group.wait().tokens[0]) for _ in range(3)] == [11, 12, 13]

    def test_sizes_and_processes_are_those_of_all_ranks(self, monkeypatch) -> None:
        with self.joined(monkeypatch, READY, tp=4) as it:
            assert (it.group.weights_bytes, it.group.kv_bytes) == (7 + 3 * SIZES[0], 3 + 3 * SIZES[1])
            assert len(it.group.pids) == len(set(it.group.pids)) == 4
            assert it.group.pids[0] == os.getpid()
            assert it.group.limits is LIMITS
        for pid in it.group.pids[1:]:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
        assert it.executor.log.count("release") == 1
        it.group.release()
        assert it.executor.log.count("release") == 1

    def test_a_rank_that_ends_ends_the_group_with_its_name(self, monkeypatch) -> None:
        with self.joined(monkeypatch, f"{READY} order kill") as it:
            it.leader.processes[0].order(words.WAKE)
            _until(lambda: it.interconnect.has_ended)
            for _ in range(2):
                with pytest.raises(MachineError, match=r"^rank 1 of the model ended \(SIGKILL\)$"):
                    it.group.submit(step(1))
            assert it.executor.most == 0

    def test_a_rank_that_ends_in_a_step_ends_the_wait(self, monkeypatch) -> None:
        with self.joined(monkeypatch, f"{READY} order {say(words.FAILED + b'no memory')} exit:1") as it:
            it.group.submit(step(1))
            it.leader.processes[0].order(words.WAKE)
            _until(lambda: it.interconnect.has_ended)
            with pytest.raises(MachineError, match=r"^rank 1 of the model: no memory$"):
                it.group.wait()

    def test_the_first_rank_that_ends_is_the_reason(self, monkeypatch) -> None:
        with self.joined(monkeypatch, f"{READY} order kill", tp=4) as it:
            for process in reversed(it.leader.processes):
                process.order(words.WAKE)
                _until(lambda: it.interconnect.has_ended)
            for process in it.leader.processes:
                process.ending()
            with pytest.raises(MachineError, match="rank 3 of the model ended"):
                it.group.submit(step(1))

    def test_what_a_lost_rank_breaks_is_told_as_its_loss(self, monkeypatch) -> None:
        """The step fails before anybody has seen the end of the rank."""
        monkeypatch.setattr(rank_group, "BLAME_S", 30.0)
        with self.joined(monkeypatch, f"{READY} order kill") as it:
            error = it.interconnect.lost_errors[0]

            def lose() -> None:
                it.leader.processes[0].order(words.WAKE)
                raise error("a broken meeting")

            it.executor.fails = lose
            with pytest.raises(MachineError, match=r"rank 1 of the model ended \(SIGKILL\)"):
                it.group.submit(step(1))

    def test_a_step_that_fails_with_all_ranks_there_says_so(self, monkeypatch) -> None:
        monkeypatch.setattr(rank_group, "BLAME_S", 0.01)
        with self.joined(monkeypatch, READY) as it:
            error = it.interconnect.lost_errors[0]
            it.executor.fails = failing(error("a broken meeting"))
            with pytest.raises(MachineError, match="a broken meeting"):
                it.group.submit(step(1))
            it.executor.fails = failing(ValueError("a mistake"))
            with pytest.raises(ValueError, match="a mistake"):
                it.group.wait()

    def test_all_ranks_go_to_standby_behind_the_steps_and_come_back(self, monkeypatch) -> None:
        script = f"{READY} {rested(5, 6)} order {rested(1, 2)}"
        with self.joined(monkeypatch, script, tp=4) as it:
            if not it.group.can_sleep:
                return
            for _ in range(2):
                assert it.group.standby() == GivenBack(15, 18)
            it.group.wake()
            it.group.wake()
            assert it.group.standby() == GivenBack(3, 6)
            assert it.executor.log.count("standby") == 2
            assert it.executor.log.count("wake") == 1

    def test_ranks_rest_behind_all_steps_that_were_handed_out(self, monkeypatch) -> None:
        """The rank that draws may have its tokens before the others have ended the step."""
        with self.joined(monkeypatch, READY, tp=2) as it:
            orders: list[int] = []
            (process,) = it.leader.processes
            monkeypatch.setattr(process, "order", orders.append)
            monkeypatch.setattr(process, "rested", lambda: GivenBack(1, 2))
            for steps in (2, 5):
                while it.executor.submitted < steps:
                    it.group.submit(step(1))
                    it.group.wait()
                it.group.standby()
                assert orders[-1] == steps
                it.group.wake()

    def test_a_rank_that_is_not_ready_leaves_nothing_behind(self, monkeypatch) -> None:
        before = sockets()
        with (
            pytest.raises(MachineError, match="rank 1 of the model ended"),
            self.joined(monkeypatch, say(words.HELLO) + " task kill", tp=2),
        ):
            pass
        assert sockets() == before


def sockets() -> int:
    """Sockets that this process has open."""
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found += "socket:" in str(link.readlink())
    return found


def firsts(inputs: StepInputs) -> list[int]:
    """The numbers of a step, and the first of each array but features, which only one rank reads."""
    arrays = {name: array for name, array in vars(inputs).items() if name != "features"}
    return [array if isinstance(array, int) else int(array[0]) for array in arrays.values()]


def _until(is_so: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline_s, "it did not happen"
        time.sleep(0.001)
