"""The contract of groups of ranks: with ranks that nothing joins, and with those of CPUs."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import cast

import pytest

from firelane.backends.cpu.codegen.layout import Layout
from firelane.backends.cpu.executor import CpuExecutor
from firelane.backends.cpu.link import RankLink
from firelane.backends.cpu.native import LINK_BYTES, LINK_ENDED_AT
from firelane.backends.cpu.ranks.hosts.others import OtherHosts
from firelane.backends.cpu.ranks.interconnect import MemoryInterconnect
from firelane.backends.ranks.leader import Interconnect
from firelane.backends.ranks.member import Follower, Member, limits_of
from firelane.contract import SlotState, StepInputs
from firelane.contract.slots import shared_memory
from firelane.engine_config import ExecutorConfig
from firelane.errors import UsageError
from firelane.parallel.hosts import HostLayout
from firelane.parallel.ranks import RankLayout, rank_programs
from tests.parallel.rank_contract import RankContract
from tests.parallel.rank_scripts import LIMITS, VOCAB, FakeExecutor, FakeInterconnect, leader_of, program


class TestNothingBetweenRanks(RankContract):
    def make(self, executor: FakeExecutor, pp: int, tp: int) -> Interconnect:
        del executor, pp, tp
        return FakeInterconnect()

    def read(self, interconnect: Interconnect, steps: int) -> list[StepInputs]:
        assert isinstance(interconnect, FakeInterconnect)
        return interconnect.handed_out[:steps]


class TestMemoryOfAHost(RankContract):
    """The executor in front is a fake, but for the word of the end, which lies in the shared memory."""

    def make(self, executor: FakeExecutor, pp: int, tp: int) -> Interconnect:
        config = ExecutorConfig(cache_dir=Path("/"), tensor_parallel_size=tp, pipeline_parallel_size=pp)
        hosts = HostLayout(ranks=RankLayout(tp=tp, pp=pp))
        made = MemoryInterconnect(Path("/"), config, hosts, OtherHosts(), range(tp * pp))
        programs = dict(enumerate(rank_programs(program(), hosts.ranks, "")))
        limits = limits_of(programs[0], LIMITS)
        layout = Layout(program=programs[hosts.ranks.sampler], limits=limits, isa="portable")
        link = made.connect(layout, LIMITS, programs)
        self.other = RankLink(layout, hosts, 0, link.sizes, cores=1, fd=link.fd)
        header = (ctypes.c_uint8 * LINK_BYTES).from_address(link.header)

        def end() -> None:
            header[LINK_ENDED_AT] = 1

        executor.end_group = end
        made.executor = cast(CpuExecutor, executor)
        return made

    def read(self, interconnect: Interconnect, steps: int) -> list[StepInputs]:
        del interconnect
        return [self.other.ring.read() for _ in range(steps)]

    def test_more_ranks_than_cores_are_refused(self) -> None:
        config = ExecutorConfig(cache_dir=Path("/"), tensor_parallel_size=4)
        hosts = HostLayout(ranks=RankLayout(tp=4))
        for cores in (1, 3):
            with pytest.raises(UsageError, match=f"this process has {cores} core.*each rank needs one"):
                MemoryInterconnect(Path("/"), config, hosts, OtherHosts(), range(cores))
        MemoryInterconnect(Path("/"), config, hosts, OtherHosts(), range(4))


def test_a_follower_has_the_slots_of_the_leader() -> None:
    fd = shared_memory()
    mine = SlotState.allocate(LIMITS, VOCAB, fd=fd)
    told: list[bool] = []
    follower = Follower(rank=1, slots_fd=fd, tell_loaded=lambda: told.append(True), limits=LIMITS)
    theirs = follower.join(LIMITS, VOCAB)
    os.close(fd)
    mine.tokens[2, 5] = 77
    assert theirs.tokens[2, 5] == 77
    follower.meet_loaded()
    assert told == [True]


def test_the_only_rank_shares_nothing_and_runs_the_whole_model() -> None:
    alone = Member()
    assert alone.join(LIMITS, VOCAB) is None
    assert alone.max_in_flight == 1
    assert Member(is_segmented=False).programs(program()) == {0: program()}
    assert alone.programs(program())[0].weights_bytes == program().weights_bytes


@pytest.mark.parametrize(
    ("layout", "host", "rank", "ranks"),
    [
        ({"tp": 2}, 0, 0, {0, 1}),
        ({"tp": 2}, 1, 1, {1}),
        ({"tp": 2, "pp": 2}, 0, 2, {0, 1, 2, 3}),
        ({"tp": 2, "pp": 2}, 1, 0, {0}),
    ],
)
def test_the_leader_of_the_engines_host_finds_sizes_for_all_ranks(
    layout: dict[str, int], host: int, rank: int, ranks: set[int]
) -> None:
    """The first rank of another host is told the sizes; only the one that draws has steps in flight."""
    leader = leader_of(FakeInterconnect(), count=2, host=host, **layout)
    assert leader.rank == rank
    assert leader.programs(program()).keys() == ranks
    assert leader.max_in_flight == (1 if host else layout.get("pp", 1))
