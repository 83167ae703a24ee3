"""Small programs with random weights on the CPU backend, driven step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firelane import env
from firelane.backends.cpu.codegen.compile import KernelCompiler
from firelane.backends.cpu.codegen.layout import Layout
from firelane.backends.cpu.executor import CpuExecutor
from firelane.backends.cpu.native import ProgramLibrary
from firelane.contract import (
    NO_SNAPSHOT,
    SAMPLE,
    SCORE,
    ZERO_STATE,
    AdapterLimits,
    SlotState,
    Span,
    StepInputs,
    StepLimits,
    StepOutputs,
)
from firelane.native.machine import choose_isa, cpu_identity
from firelane.parallel.segments import segmented
from firelane.program.adapters import with_adapters
from firelane.program.liveness import ArenaPlacement
from firelane.program.ops import Attention, HeadShape, Rotary
from firelane.program.program import Program
from firelane.program.values import DType, Weight
from firelane.weights.formats import coded
from firelane.weights.formats.formats import Format, pack
from firelane.weights.packing.plan import plan
from tests.models.dense import DenseSpec, dense_program
from tests.models.joined import program_of

HERE = choose_isa("", cpu_identity())


def small_spec(**changes: Any) -> DenseSpec:
    """A decoder with awkward shapes: widths that are no multiple of a panel, groups of three heads, tiny
    vocabulary."""
    heads = changes.pop("heads", HeadShape(heads=6, kv_heads=2, head_dim=48))
    frequencies = 10000.0 ** -(np.arange(0, heads.head_dim, 2, dtype=np.float32) / heads.head_dim)
    settings: dict[str, Any] = {
        "name": "small",
        "vocab_size": 331,
        "max_model_len": 512,
        "hidden_size": 104,
        "mlp_size": 200,
        "heads": heads,
        "rotary": Rotary(inverse_frequencies=tuple(float(f) for f in frequencies)),
        "windows": (0, 0),
        "norm_eps": 1e-5,
        "dtype": DType.BF16,
    }
    return DenseSpec(**{**settings, **changes})


def round_bf16(x: NDArray[np.float32]) -> NDArray[np.uint16]:
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def widen_bf16(x: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (x.astype(np.uint32) << 16).view(np.float32)


class RandomWeights:
    """Seeded weights, packed in memory; `values` holds them unpacked as float32. The same values whatever
    their `forms`, and whatever their program is joined with; some matrix weights are tiny, so that coded
    forms have escapes."""

    def __init__(self, program: Program, seed: int = 0, forms: Mapping[str, Format] | None = None) -> None:
        generators: dict[str, np.random.Generator] = {}
        forms = forms or {}
        self._tables: dict[str, NDArray[np.uint64]] = {}
        self.values: dict[str, NDArray[np.float32]] = {}
        self._packed: dict[str, NDArray[Any]] = {}
        for placed in plan(program):
            part = program_of(placed.weight.name)
            rng = generators.setdefault(part, np.random.default_rng(seed))
            raw = self._draw(rng, placed.weight)
            bits = round_bf16(raw) if placed.weight.dtype is DType.BF16 else raw
            packed = pack(bits, placed.format, gated=placed.gated)
            self.values[placed.weight.name] = widen_bf16(bits) if bits.dtype == np.uint16 else bits
            if placed.weight.name in forms:
                packed, table = coded.encode(packed, forms[placed.weight.name])
                self._tables[placed.weight.name] = table
            self._packed[placed.weight.name] = aligned(packed)

    @staticmethod
    def _draw(rng: np.random.Generator, weight: Weight) -> NDArray[np.float32]:
        if len(weight.shape) == 1:
            offset = 0.0 if "bias" in weight.name else 1.0
            return (offset + 0.2 * rng.standard_normal(weight.shape)).astype(np.float32)
        values = rng.standard_normal(weight.shape) * 1.2 * weight.k**-0.5
        tiny = rng.integers(0, 3000, weight.shape)
        values *= np.select([tiny < 20, tiny == 20, tiny == 21], [2.0**-25, 0.0, -0.0], 1.0)
        return values.astype(np.float32)

    @property
    def nbytes(self) -> int:
        return sum(p.nbytes for p in self._packed.values())

    def bytes_of(self, name: str) -> int:
        return self._packed[name].nbytes

    def address(self, name: str) -> int:
        return self._packed[name].ctypes.data

    def panel_table(self, name: str) -> NDArray[np.uint64]:
        return self._tables[name]

    def close(self) -> None:
        pass


def aligned(array: NDArray[Any]) -> NDArray[Any]:
    """A copy at a 64-byte boundary, with a page of NaN bytes behind it that no kernel may let into a
    result."""
    raw = np.full(array.nbytes + 64 + 4096, 0xFF, np.uint8)
    start = -raw.ctypes.data % 64
    view = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


def limits(**changes: int) -> StepLimits:
    settings = {
        "max_num_seqs": 32,
        "max_num_batched_tokens": 256,
        "max_output_rows": 40,
        "max_model_len": 320,
        "block_size": 16,
        "num_blocks": 700,
    }
    return StepLimits(**{**settings, **changes})


@dataclass
class Chunk:
    slot: int
    start: int
    length: int
    sample: bool = True
    score: bool = False
    state_from: int | None = None
    """The entry of chunk_from. None takes the slot itself, or zeros at the slot's first token."""
    state_save: int = NO_SNAPSHOT


def set_greedy(state: SlotState, slot: int, prompt: Sequence[int], logprobs: int) -> None:
    """Set up a slot for greedy decoding."""
    state.tokens[slot, : len(prompt)] = prompt
    row = state.sampling[slot]
    row["temperature"], row["top_p"], row["repetition_penalty"] = 0.0, 1.0, 1.0
    row["logprobs"], row["prompt_len"] = logprobs, len(prompt)


def fill(inputs: StepInputs, chunks: Sequence[Chunk]) -> StepInputs:
    """Each chunk samples after its last token (unless its prompt goes on), or scores all its tokens."""
    row = token = 0
    for i, c in enumerate(chunks):
        inputs.chunk_slot[i], inputs.chunk_start[i], inputs.chunk_len[i] = c.slot, c.start, c.length
        inputs.chunk_from[i] = (c.slot if c.start else ZERO_STATE) if c.state_from is None else c.state_from
        inputs.chunk_save[i] = c.state_save
        first = 0 if c.score else c.length - 1 if c.sample else c.length
        for at in range(first, c.length):
            inputs.row_token[row], inputs.row_slot[row] = token + at, c.slot
            inputs.row_position[row] = c.start + at
            inputs.row_kind[row] = SCORE if c.score else SAMPLE
            row += 1
        token += c.length
    inputs.num_chunks, inputs.num_tokens, inputs.num_rows = len(chunks), token, row
    return inputs


@dataclass
class Machine:
    """An executor and the inputs that drive it; slot s owns the blocks that `blocks[s]` names."""

    executor: CpuExecutor
    weights: RandomWeights
    inputs: StepInputs = field(init=False)

    def __post_init__(self) -> None:
        self.inputs = StepInputs.allocate(self.executor.limits, self.executor.features_in)

    def give_blocks(self, slot: int, blocks: Sequence[int]) -> None:
        """`blocks` are numbered within each cache group: each has an equal share of the pages."""
        tables, num_blocks = self.executor.state.block_tables, self.executor.limits.num_blocks
        for group, table in enumerate(tables):
            table[slot, : len(blocks)] = np.asarray(blocks) + group * (num_blocks // len(tables))

    def greedy(self, slot: int, prompt: Sequence[int], logprobs: int = 5) -> None:
        """Set up a slot for greedy decoding."""
        set_greedy(self.executor.state, slot, prompt, logprobs)

    def step(self, chunks: Sequence[Chunk]) -> StepOutputs:
        """Each chunk samples after its last token (unless its prompt goes on), or scores all its tokens."""
        self.fill(chunks)
        self.executor.submit(self.inputs)
        return self.executor.wait()

    def fill(self, chunks: Sequence[Chunk]) -> StepInputs:
        return fill(self.inputs, chunks)

    def again(self, kind: int) -> StepOutputs:
        """The last step once more, with rows of another kind."""
        self.inputs.row_kind[: self.inputs.num_rows] = kind
        self.executor.submit(self.inputs)
        return self.executor.wait()


def with_spans(program: Program, spans: Sequence[Span]) -> Program:
    """The program with the spans of its attention layers replaced, in their order."""
    left = iter(spans)
    ops = tuple(replace(op, span=next(left)) if isinstance(op, Attention) else op for op in program.ops)
    return replace(program, ops=ops)


def fitted(sizes: StepLimits, program: Program) -> StepLimits:
    """With `sizes.num_blocks` pages for each cache group, and recurrent states of the program's size, two of
    them snapshots."""
    spans = program.spans
    blocks = sizes.num_blocks * len(spans)
    states = {"state_bytes": program.state_bytes, "num_snapshots": 2 if program.state_bytes else 0}
    return replace(sizes, spans=spans, num_blocks=blocks, **states)


def apart(layout: Layout) -> ArenaPlacement:
    """Every value in a place of its own."""
    values = list(layout.value_index)
    sizes = [-(-layout.row_bytes(v) * layout.max_rows[v.rows] // 64) * 64 for v in values]
    starts = np.cumsum([0, *sizes])
    return ArenaPlacement(
        offsets=dict(zip(values, starts[:-1].tolist(), strict=True)), nbytes=int(starts[-1])
    )


def machine(
    spec: DenseSpec | Program,
    cache_dir: Path,
    *,
    isa: str = HERE,
    sizes: StepLimits | None = None,
    threads: int = 2,
    place: Callable[[Layout], ArenaPlacement] | None = None,
    form: Format | Callable[[Weight], Format] | None = None,
    decode_once_from: int = 2,
    shared_pages: bool = False,
    adapters: AdapterLimits | None = None,
) -> Machine:
    """`form`: a coded form that all matrices get, or that of each. Each cache group has `sizes.num_blocks`
    pages."""
    program = segmented(spec if isinstance(spec, Program) else dense_program(spec))
    program = with_adapters(program, adapters) if adapters else program
    matrices = [w for w in program.weights if w.is_matrix and w.dtype is DType.BF16]
    forms = {w.name: form(w) if callable(form) else form for w in matrices} if form else {}
    sizes = sizes or limits()
    sizes = fitted(sizes, program)
    layout = Layout(program=program, limits=sizes, isa=isa, forms=forms, adapter_limits=adapters)
    if place is not None:
        vars(layout)["placement"] = place(layout)  # where the cached property keeps its value
    library = KernelCompiler.find(env.read({"HOME": "/"}), cache_dir).build(layout)
    weights = RandomWeights(program, forms=forms)
    executor = CpuExecutor(
        library=ProgramLibrary(library),
        layout=layout,
        weights=weights,
        threads=threads,
        decode_once_from=dict.fromkeys(Format, decode_once_from),
        shared_pages=shared_pages,
    )
    return Machine(executor, weights)
