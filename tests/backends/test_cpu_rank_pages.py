"""Pages of several ranks, read and written by the engine's process: tiers, and engines that hand over, with
the bits of one rank."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from firelane.backends import cpu
from firelane.backends.cpu.codegen.layout import Meeting
from firelane.backends.cpu.ranks import interconnect
from firelane.backends.cpu.ranks.pages import RankPages
from firelane.backends.ranks.group import RankGroup
from firelane.contract import Executor
from firelane.engine.pages import page_waits, tier_reads
from firelane.engine.process.standby import EngineStandby
from firelane.engine.process.tiers import open_tiers
from firelane.engine_config import ExecutorConfig, TiersConfig
from firelane.errors import UsageError
from firelane.kv import SnapshotRule
from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from firelane.parallel.ranks import RankLayout, rank_programs
from firelane.program.ops import LatentCache, RopeAndCache
from tests.engine.driver import Driver, make_request
from tests.engine.handed_over import HandedOver, connected
from tests.models.families import FAMILIES, config_of, make_checkpoint

FAMILY, DTYPE = "qwen3_next", "bfloat16"  # heads, and states of heads
RULE = SnapshotRule(interval=16, at_least=16)
GROUPS = {
    "heads": (FAMILY, {"tensor_parallel_size": 2}),
    "stages": (FAMILY, {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}),
    "one cache": ("deepseek_v3", {"expert_parallel_size": 2}),
}
WRITES = RopeAndCache | LatentCache
pytestmark = pytest.mark.skipif(len(interconnect.usable_cores()) < 2, reason="ranks need a core each")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough on however slow a machine."""
    monkeypatch.setattr(tier_reads, "UNKNOWN_S", 60.0)
    for name in ("LEAST_S", "MOST_S", "UNKNOWN_S"):
        monkeypatch.setattr(page_waits, name, 60.0)


@pytest.fixture(autouse=True)
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough for four ranks."""
    usable = sorted(interconnect.usable_cores())[:2] * 2
    monkeypatch.setattr(interconnect, "usable_cores", lambda: usable)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    families = {family for family, _ in GROUPS.values()}
    return {f: make_checkpoint(f, DTYPE, tmp_path_factory.mktemp(f)) for f in families}


def load(directory: Path, cache_dir: Path, **options: object) -> Executor:
    config = ExecutorConfig(
        cache_dir=cache_dir,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        kv_cache_bytes=16 << 20,
        **options,
    )
    return cpu.load(load_program(read_config(directory)), directory, config, lambda *_: None)


@pytest.fixture
def engines(checkpoints: dict[str, Path], kernel_cache: Path) -> Iterator:
    made: list[Executor] = []

    def engine(family: str = FAMILY, **options: object) -> Driver:
        made.append(load(checkpoints[family], kernel_cache, **options))
        return Driver(made[-1], snapshots=RULE)

    yield engine
    for executor in made:
        executor.release()


@pytest.fixture(scope="module")
def alone(checkpoints: dict[str, Path], kernel_cache: Path) -> dict[str, dict[int, list[int]]]:
    """By family, the tokens of one rank."""
    found: dict[str, dict[int, list[int]]] = {}
    for family, directory in checkpoints.items():
        executor = load(directory, kernel_cache)
        found[family] = tokens(Driver(executor, snapshots=RULE), 1, 2, 3)
        executor.release()
    return found


def parts(count: int, *widths: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (count, width), np.uint8) for width in widths]


def test_a_page_is_the_parts_of_all_ranks_in_order() -> None:
    of_ranks = parts(5, 7, 0, 12)
    memory = RankPages(of_ranks, "x")
    assert (memory.num_pages, memory.page_bytes, memory.pages, memory.fd) == (5, 19, None, -1)
    into = memory.buffer(2)
    assert memory.read([3, 1], into)
    whole = np.concatenate(of_ranks, axis=1)
    assert (into == whole[[3, 1]]).all()


@pytest.mark.parametrize(("first", "nbytes"), [(0, 19), (0, 7), (3, 10), (7, 12), (18, 1), (9, 4)])
def test_some_bytes_of_a_page_are_read_and_written(first: int, nbytes: int) -> None:
    of_ranks = parts(5, 7, 0, 12)
    memory, whole = RankPages(of_ranks, "x"), np.concatenate(of_ranks, axis=1)
    into = np.zeros((1, nbytes), np.uint8)
    assert memory.read([2], into, first)
    assert (into == whole[2, first : first + nbytes]).all()
    new = ~into
    assert memory.write([4], new, first)
    whole[4, first : first + nbytes] = new
    assert (np.concatenate(of_ranks, axis=1) == whole).all(), "these bytes, and no others"


@pytest.mark.parametrize(
    ("sizes", "least"),
    [({"tp": 2}, 40), ({"tp": 2, "pp": 2}, 40), ({"ep": 2}, 15)],
    ids=["2", "2 x 2", "ep 2"],
)
def test_ranks_meet_behind_all_that_a_step_writes(sizes: dict[str, int], least: int) -> None:
    """So a page is whole when the rank that draws has its tokens: of all families that can be cut so."""
    cut = 0
    for family in FAMILIES:
        program = load_program(config_of(family, DTYPE))
        with suppress(UsageError):
            ranks = RankLayout.of(program, **sizes)
            for own in rank_programs(program, ranks, "")[ranks.sampler :]:
                writes = [i for i, op in enumerate(own.ops) if isinstance(op, WRITES) or op.states]
                meetings = [i for i, op in enumerate(own.ops) if isinstance(op, Meeting)]
                assert max(meetings) > max(writes, default=-1), family
            cut += 1
    assert cut >= least


def prompt(i: int) -> list[int]:
    return list(range(10 + i, 160 + 2 * i))


def tokens(d: Driver | HandedOver, *requests: int) -> dict[int, list[int]]:
    for i in requests:
        d.submit(make_request(i, prompt(i % 10), max_tokens=6, seed=3))
        d.run()
    return {i: d.tokens[i] for i in requests}


def scribble(executor: Executor) -> None:
    """Over all that a prompt could begin with."""
    for memory in (executor.page_memory, executor.state_memory):
        if memory is not None:
            noise = np.full((1, memory.page_bytes), 0x7F, np.uint8)
            for page in range(memory.num_pages):
                assert memory.write([page], noise)


def test_tokens_behind_pages_of_tiers(engines, alone, tmp_path: Path) -> None:
    """Pages that one engine has stored give the next one the tokens of one rank."""
    want = [alone[FAMILY][i] for i in (1, 2)]
    config = TiersConfig(host_bytes=8 << 20, disk=tmp_path, disk_bytes=16 << 20)
    cached: dict[int, int] = {}
    for life in (0, 100):
        d = engines(tiers=config, tensor_parallel_size=2)
        executor = d.executor
        assert isinstance(executor, RankGroup)
        tiers = open_tiers(config, d.core, executor.page_memory, executor.state_memory, "m")
        for turn in (0, 10, 20):
            first, second = (life + turn + i for i in (1, 2))
            assert list(tokens(d, first, second).values()) == want
            tiers.settle()
            if turn:
                rest(d, tiers)
            d.core.kv.forget()
            scribble(executor)
        cached |= d.cached
        tiers.close()
        executor.release()
    assert (cached.pop(1), cached.pop(2)) == (0, 0)
    assert min(cached.values()) >= 128


def rest(d: Driver, tiers) -> None:
    """Standby, and its end, as an engine has them."""
    standby = EngineStandby(d.executor, d.core.kv, tiers)
    standby.sleep()
    standby.wake()


@pytest.mark.parametrize(("family", "sizes"), GROUPS.values(), ids=GROUPS)
def test_a_group_goes_on_with_pages_of_another(engines, alone, family: str, sizes: dict[str, int]) -> None:
    source, reader = (engines(family, kv_cache_memory="shared", **sizes) for _ in range(2))
    with connected(source, reader) as (transfer, _):
        both = HandedOver(source, reader, transfer.engine_id)
        assert tokens(both, 1, 2, 3) == alone[family]
        assert both.handed_over == 3
        assert min(reader.cached.values()) >= 128
        assert reader.frames[-1].stats.pulls_ok == 3


def test_what_the_engine_was_not_asked_to_reach_it_does_not(engines) -> None:
    executor = engines(tensor_parallel_size=2).executor
    assert executor.page_memory is executor.state_memory is None


def test_the_layout_says_how_many_ranks_there_are(engines) -> None:
    found = [
        engines(kv_cache_memory="shared", **sizes).executor
        for sizes in (*(GROUPS[name][1] for name in ("heads", "stages")), {})
    ]
    ids = [executor.page_memory.layout_id for executor in found]
    assert [name[16:] for name in ids] == [" of 2 ranks", " of 4 ranks in 2 stages", ""]
    assert len({name[:16] for name in ids}) == 3
    assert len({executor.state_memory.layout_id[:16] for executor in found}) == 3
    assert os.getpid() in found[0].pids
