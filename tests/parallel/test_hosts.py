from __future__ import annotations

import pytest

from firelane.errors import UsageError
from firelane.parallel.hosts import HostLayout, Wire
from firelane.parallel.ranks import RankLayout

LAYOUTS = [
    (RankLayout(tp=2), 2),
    (RankLayout(tp=4), 2),
    (RankLayout(tp=8), 4),
    (RankLayout(pp=3), 3),
    (RankLayout(tp=2, pp=2), 2),
    (RankLayout(tp=2, pp=2), 4),
    (RankLayout(tp=2, pp=4), 2),
    (RankLayout(experts=2), 2),
]


@pytest.mark.parametrize(("ranks", "count"), LAYOUTS, ids=str)
def test_every_rank_has_one_host_and_the_first_draws(ranks: RankLayout, count: int) -> None:
    hosts = HostLayout(ranks=ranks, count=count)
    found = {rank: host for host in range(count) for rank in hosts.ranks_of(host)}
    assert found == {rank: hosts.host_of(rank) for rank in range(ranks.ranks)}
    assert len(found) == ranks.ranks
    assert ranks.sampler in hosts.ranks_of(0)


@pytest.mark.parametrize(("ranks", "count"), LAYOUTS, ids=str)
def test_every_host_hears_of_every_rank_of_its_stages_once(ranks: RankLayout, count: int) -> None:
    hosts = HostLayout(ranks=ranks, count=count)
    for host in range(count):
        own = hosts.ranks_of(host)
        heard = sorted(peer for rank in own for peer in hosts.peers(rank))
        stages = {ranks.stage_of(rank) for rank in own}
        assert heard == [r for r in range(ranks.ranks) if ranks.stage_of(r) in stages and r not in own]


def test_wires_of_stages_on_hosts_of_their_own() -> None:
    hosts = HostLayout(ranks=RankLayout(tp=2, pp=2), count=2)
    assert list(hosts.wires()) == [Wire("mail", 0, 2), Wire("mail", 1, 3)]
    assert [hosts.host_of(rank) for rank in range(4)] == [1, 1, 0, 0]


def test_wires_of_one_stage_on_two_hosts() -> None:
    hosts = HostLayout(ranks=RankLayout(tp=4), count=2)
    assert list(hosts.wires()) == [Wire("sum", 0, 2), Wire("sum", 1, 3)]


def test_one_host_has_no_wires() -> None:
    assert list(HostLayout(ranks=RankLayout(tp=2, pp=2)).wires()) == []


@pytest.mark.parametrize(
    ("ranks", "count"), [(RankLayout(), 2), (RankLayout(tp=2), 3), (RankLayout(tp=2, pp=3), 4)]
)
def test_ranks_that_hosts_cannot_share_evenly_are_refused(ranks: RankLayout, count: int) -> None:
    with pytest.raises(UsageError, match=f"--nnodes {count}: the model has .* cannot be shared out evenly"):
        HostLayout(ranks=ranks, count=count)
