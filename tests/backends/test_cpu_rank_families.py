"""All families by ranks of the CPU backend, with the bits of one rank.

Each rank runs one program, in which the families' programs of that rank follow on each other: so a layout
costs a compiler's run for each rank, not for each rank and family. FAMILIES_HERE have between them every
setting of every op that any family has: what heads are normalised by, masks, gates, how experts are picked,
recurrent layers, what is added where. A family that is not among them differs from these in numbers alone,
and its cuts are those of tests/parallel/test_rank_programs.py; test_every_setting_of_every_op_is_here says
which one to add. What ranks compute is compared value by value, wherever each of them has all of a value.
Kernels are compiled without optimisation here: those of the other tests of ranks are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from firelane import env
from firelane.backends.cpu.alike import alike
from firelane.backends.cpu.codegen import compile as cpu_compile
from firelane.backends.cpu.codegen.compile import KernelCompiler
from firelane.backends.cpu.codegen.layout import Layout
from firelane.backends.cpu.executor import CpuExecutor
from firelane.backends.cpu.link import LinkSizes, RankLink
from firelane.backends.cpu.native import ProgramLibrary
from firelane.backends.ranks.member import limits_of
from firelane.contract import SlotState, StepInputs
from firelane.models.registry import load_program
from firelane.parallel.hosts import HostLayout
from firelane.parallel.ranks import RankLayout, rank_program
from firelane.parallel.shard import AttentionShare
from firelane.program.cache import Grouping, grouping_of
from firelane.program.ops import AwaitCache, ExpertGatedLinear
from firelane.program.program import Program
from firelane.program.reference import materialise
from firelane.program.values import DType, Rows, Value, Weight
from firelane.weights.formats.formats import pack
from firelane.weights.packing.plan import plan
from tests.backends.cpu_harness import (
    HERE,
    Chunk,
    aligned,
    apart,
    fill,
    fitted,
    limits,
    round_bf16,
    set_greedy,
)
from tests.models.families import FAMILIES, config_of, random_tensors
from tests.models.joined import joined

FAMILIES_HERE = (
    "nemotron_h",
    "granite_hybrid",
    "granite_hybrid_dense",
    "gemma4_moe",
    "gemma4_e",
    "gemma2",
    "gpt_oss",
    "llama4",
    "llama_bias",
    "minimax_m2",
    "ministral3",
    "mistral4",
    "deepseek_v2",
    "glm_moe_dsa",
    "mimo_v2_flash",
    "lfm2",
    "qwen3_next",
    "kimi_linear",
)
LAYOUTS = {
    "tp 2, ep 2, pp 2": RankLayout(tp=2, pp=2, experts=2),
    "ep 2, rows": RankLayout(experts=2, attention=AttentionShare.ROWS, expert_columns=True),
}
SIZES = limits(max_num_seqs=3, max_num_batched_tokens=48, max_output_rows=8, max_model_len=64, num_blocks=12)
STEPS = [
    [Chunk(0, 0, 27), Chunk(2, 0, 14)],
    [Chunk(0, 27, 6), Chunk(1, 0, 9), Chunk(2, 14, 1)],
    [Chunk(2, 15, 1)],
    [Chunk(0, 33, 1), Chunk(1, 9, 1), Chunk(2, 16, 1)],
]

Result = tuple[list[bytes], dict[str, list[set[bytes]]]]


def tensors() -> dict[str, Mapping[str, NDArray[np.float32]]]:
    """By family."""
    return {name: random_tensors(config_of(name, "bfloat16"), 0) for name in FAMILIES_HERE}


def without_head(program: Program) -> Program:
    """Without what has a row for each output: one family's is enough, as a step draws once."""
    ops = (op for op in program.ops if all(v.rows is not Rows.OUTPUT for v in (*op.inputs, *op.outputs)))
    return replace(program, ops=tuple(ops), head=None)


def program_of_rank(layout: RankLayout, rank: int, grouping: Grouping | None = None) -> Program:
    """All families' programs of one rank, one after the other."""
    made: dict[str, Program] = {}
    for name in FAMILIES_HERE:
        own = alike(rank_program(load_program(config_of(name, "bfloat16")), layout, rank))
        made[name] = own if name == FAMILIES_HERE[-1] else without_head(own)
    return replace(joined(made), grouping=grouping)


class FamilyWeights:
    """Packed weights of a rank's program, cut from the tensors of all families."""

    def __init__(self, program: Program, tensors: Mapping[str, Mapping[str, NDArray[np.float32]]]) -> None:
        self._packed: dict[str, NDArray[Any]] = {}
        for placed in plan(program):
            weight = placed.weight
            family, _, _ = weight.name.partition("/")
            values = materialise(weight, tensors[family].__getitem__)
            numbers = round_bf16(values) if weight.dtype is DType.BF16 else values
            self._packed[weight.name] = aligned(pack(numbers, placed.format, gated=placed.gated))

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self._packed.values())

    def bytes_of(self, name: str) -> int:
        return self._packed[name].nbytes

    def address(self, name: str) -> int:
        return self._packed[name].ctypes.data

    def panel_table(self, name: str) -> NDArray[np.uint64]:
        raise KeyError(name)

    def close(self) -> None:
        pass


class Ranks:
    """Executors of all ranks of a layout, in this process, with a thread each. The sequences' state is that
    of all of them."""

    def __init__(self, ranks: RankLayout, layouts: list[Layout], libraries: list[Path], tensors: Any) -> None:
        self.ranks, self.layouts, self.links = ranks, layouts, list[RankLink]()
        self.state = SlotState.allocate(layouts[0].limits, layouts[ranks.sampler].program.vocab_size)
        sizes, hosts = LinkSizes.of(layouts), HostLayout(ranks=ranks)
        for rank, layout in enumerate(layouts if ranks.ranks > 1 else ()):
            fd = self.links[0].fd if self.links else -1
            self.links.append(RankLink(layout, hosts, rank, sizes, cores=1, fd=fd))
        self.executors = [
            CpuExecutor(
                library=ProgramLibrary(library),
                layout=layout,
                weights=FamilyWeights(layout.program, tensors),
                threads=1,
                link=self.links[rank] if self.links else None,
                state=self.state,
            )
            for rank, (layout, library) in enumerate(zip(layouts, libraries, strict=True))
        ]
        self._inputs = StepInputs.allocate(layouts[0].limits)

    def step(self, chunks: list[Chunk]) -> bytes:
        """Tokens that are drawn, and their log-probabilities."""
        fill(self._inputs, chunks)
        for executor in self.executors:
            executor.submit(self._inputs)
        outputs = [executor.wait() for executor in self.executors][self.ranks.sampler]
        rows = self._inputs.num_rows
        return outputs.tokens[:rows].tobytes() + outputs.logprobs[:rows].tobytes()

    def values(self, tokens: int) -> Iterator[tuple[Value, bytes]]:
        """Yield, for each rank of the last step, the bytes of each value that has a row for each token. Parts
        of sums and outputs of experts are left out: each rank has only some of them."""
        for executor, layout in zip(self.executors, self.layouts, strict=True):
            some = (op.out for op in layout.program.ops if isinstance(op, ExpertGatedLinear))
            elsewhere = {*some, *(op.x for op in layout.meetings if not isinstance(op, AwaitCache))}
            for value in layout.value_index.keys() - elsewhere:
                if value.rows is Rows.TOKEN:
                    size, row = value.width * layout.element_bytes(value.dtype), layout.row_bytes(value)
                    at = layout.placement.offsets[value]
                    rows = executor.arena[at : at + tokens * row].reshape(tokens, row)
                    yield value, rows[:, :size].tobytes()

    def release(self) -> None:
        for executor in self.executors:
            executor.release()
        for link in self.links[:1]:
            link.close_fd()


def layouts_of(ranks: RankLayout, grouping: Grouping) -> list[Layout]:
    """Return the layouts of all ranks, with every value in a place of its own."""
    programs = [program_of_rank(ranks, rank, grouping) for rank in range(ranks.ranks)]
    sizes = fitted(SIZES, programs[0])
    found = [Layout(program=own, limits=limits_of(own, sizes), isa=HERE) for own in programs]
    for layout in found:
        vars(layout)["placement"] = apart(layout)
    return found


def run(ranks: Ranks) -> Result:
    """Run all steps. Return what each step draws, and for each name and width of a value the contents that it
    had in each step on the ranks that have all of it: one content where the ranks agree."""
    rng, found = np.random.default_rng(3), dict[str, list[set[bytes]]]()
    for slot in range(SIZES.max_num_seqs):
        tables = ranks.state.block_tables
        for group, table in enumerate(tables):
            table[slot, :4] = np.arange(4) + slot * 4 + group * SIZES.num_blocks
        set_greedy(ranks.state, slot, rng.integers(0, 250, 40).tolist(), 5)
    drawn: list[bytes] = []
    for chunks in STEPS:
        drawn.append(ranks.step(chunks))
        made: dict[str, set[bytes]] = {}
        for value, rows in ranks.values(sum(chunk.length for chunk in chunks)):
            made.setdefault(f"{value.name} {value.width}", set()).add(rows)
        for name, rows in made.items():
            found.setdefault(name, []).append(rows)
    return drawn, found


@pytest.fixture(scope="module")
def results(kernel_cache: Path) -> dict[str, Result]:
    """By layout."""
    grouping = grouping_of(program_of_rank(RankLayout(), 0).cache_groups)
    layouts = {name: layouts_of(ranks, grouping) for name, ranks in ({"": RankLayout()} | LAYOUTS).items()}
    compiler, weights = KernelCompiler.find(env.read({"HOME": "/"}), kernel_cache), tensors()
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as pool:
        patch.setattr(cpu_compile, "QUICK_FLAGS", ("-O0",))
        patch.setattr(cpu_compile, "is_tiny", lambda _: True)
        libraries = {name: list(pool.map(compiler.build, own)) for name, own in layouts.items()}
    found: dict[str, Result] = {}
    for name, own in layouts.items():
        ranks = Ranks(LAYOUTS.get(name, RankLayout()), own, libraries[name], weights)
        try:
            found[name] = run(ranks)
        finally:
            ranks.release()
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_bits_of_one_rank(layout: str, results) -> None:
    (want_drawn, want), (drawn, got) = results[""], results[layout]
    both = want.keys() & got.keys()
    for family in FAMILIES_HERE:
        assert sum(name.startswith(f"{family}/") for name in both) > 5
    assert [name for name in sorted(both) if got[name] != want[name]] == []
    assert drawn == want_drawn


def settings(name: str) -> set[Any]:
    """Return the kind of each op of a family, with each field and its setting, without sizes."""
    return {
        (type(op).__name__, field.name, setting(getattr(op, field.name)))
        for op in load_program(config_of(name, "bfloat16")).ops
        for field in fields(op)  # pyright: ignore[reportArgumentType]
        if field.name != "layer"
    }


def setting(item: Any) -> Any:
    match item:
        case None | bool() | str() | Enum():
            return item
        case Value() | Weight():
            return item.dtype
        case int() | float():
            return item if item in (0, 1) else "a number"
        case tuple():
            return bool(item)
        case _ if is_dataclass(item):
            return type(item).__name__, *(setting(getattr(item, field.name)) for field in fields(item))
        case _:
            return type(item).__name__


def test_every_setting_of_every_op_is_here() -> None:
    here = set().union(*map(settings, FAMILIES_HERE))
    missing = {name: left for name in FAMILIES if (left := settings(name) - here)}
    assert not missing, "add a family that has these to FAMILIES_HERE"
