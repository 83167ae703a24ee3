"""Programs whose quantised matrices are multiplied as integers: each op against its reference, and the same
bytes in any chunks and company."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from firelane import env
from firelane.backends.cpu.codegen.compile import KernelCompiler
from firelane.backends.cpu.codegen.layout import Layout
from firelane.backends.cpu.executor import CpuExecutor
from firelane.backends.cpu.loader import choose_activations, load_for
from firelane.backends.cpu.native import ProgramLibrary
from firelane.engine_config import ACTIVATION_DTYPES, ExecutorConfig
from firelane.errors import UsageError
from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from firelane.native.machine import ISAS, cpu_identity, supported_isas
from firelane.parallel.segments import segmented
from firelane.program.integer_products import IntegerMatrix
from firelane.program.program import Program
from firelane.program.reference import ReferenceExecutor
from firelane.program.values import DType, Weight
from firelane.weights.formats.bf16 import bf16_bits
from firelane.weights.formats.formats import GROUPINGS, Format, packed_rows, source_rows
from firelane.weights.formats.grouped import encode, panel_bytes
from firelane.weights.progress import silent
from tests.backends.cpu_harness import (
    HERE,
    Chunk,
    Machine,
    RandomWeights,
    aligned,
    fitted,
    limits,
    small_spec,
    widen_bf16,
)
from tests.backends.test_cpu_ops import apart, check_step
from tests.models.dense import dense_program
from tests.models.experts import ExpertsSpec, experts_program
from tests.weights.quantized.test_quantized import write_quantized
from tests.weights.test_grouped import random_codes

FORMS = (Format.PANEL_INT4_F16, Format.PANEL_INT6_F16_MIN, Format.PANEL_INT8_F16, Format.PANEL_INT8_16_MIN)


class QuantisedWeights(RandomWeights):
    """Random codes for matrices with a form; `integers` are those as the reference multiplies them."""

    def __init__(self, program: Program, forms: Mapping[str, Format]) -> None:
        super().__init__(program)
        self.integers: dict[str, list[IntegerMatrix]] = {}
        for seed, weight in enumerate(w for w in program.weights if w.name in forms):
            self._quantise(weight, forms[weight.name], seed)

    def _quantise(self, weight: Weight, form: Format, seed: int) -> None:
        codes = random_codes(GROUPINGS[form], rows=weight.height, k=weight.k, seed=seed)
        gated = weight.layout.is_gated
        rows = weight.matrices * packed_rows(weight.rows, gated=gated)
        packed = encode(codes.taken(source_rows(weight.rows, 0, rows, gated=gated)), form)
        self._packed[weight.name] = aligned(packed)
        panels = np.arange(rows // 32 + 1, dtype=np.uint64)
        self._tables[weight.name] = panels * np.uint64(panel_bytes(form, weight.k))
        self.values[weight.name] = widen_bf16(bf16_bits(codes.values())).reshape(weight.shape)
        places = [slice(i * weight.rows, (i + 1) * weight.rows) for i in range(weight.matrices)]
        self.integers[weight.name] = [
            IntegerMatrix(codes.codes[p], codes.scales[p], None if codes.minima is None else codes.minima[p])
            for p in places
        ]


PROGRAMS = {
    "dense": dense_program(small_spec(hidden_size=128, mlp_size=256, windows=(0,))),
    "experts": experts_program(
        ExpertsSpec(hidden_size=128, width=64, experts=5, picks=2, dtype=DType.BF16, bias=True)
    ),
}


@pytest.fixture(scope="module", params=PROGRAMS)
def driven(request: pytest.FixtureRequest, kernel_cache: Path) -> Iterator[Machine]:
    program = segmented(PROGRAMS[request.param])
    quantised = [product.weight for product in program.products if product.weight.k % 32 == 0]
    forms = {w.name: FORMS[i % len(FORMS)] for i, w in enumerate(dict.fromkeys(quantised))}
    sizes = fitted(limits(num_blocks=80), program)
    layout = Layout(program=program, limits=sizes, isa=HERE, forms=forms, integers=True)
    vars(layout)["placement"] = apart(layout)
    library = KernelCompiler.find(env.read({"HOME": "/"}), kernel_cache).build(layout)
    weights = QuantisedWeights(program, forms)
    executor = CpuExecutor(library=ProgramLibrary(library), layout=layout, weights=weights, threads=2)
    yield Machine(executor, weights)
    executor.release()


def start(m: Machine, slot: int, seed: int = 5) -> None:
    m.greedy(slot, np.random.default_rng(seed).integers(1, 331, 60).tolist())
    m.give_blocks(slot, range(20 * slot, 20 * slot + 20))


def test_ops_agree_with_the_reference_of_integers(driven: Machine) -> None:
    weights: Any = driven.weights
    program = driven.executor.layout.program
    reference = ReferenceExecutor(program, weights.values, slots=32, max_len=320, integers=weights.integers)
    for slot in range(2):
        start(driven, slot, seed=slot)
    for chunks in ([Chunk(0, 0, 40)], [Chunk(0, 40, 1), Chunk(1, 0, 9)]):
        check_step(driven, reference, chunks)


def drawn(m: Machine, lengths: list[int], company: int) -> NDArray[np.float32]:
    """Log-probabilities of the first token of slot 0, its prompt cut into chunks, beside other sequences."""
    at = 0
    for slot in range(1 + company):
        start(m, slot, seed=slot)
    for i, length in enumerate(lengths[:-1]):
        m.step([*others(company, i), Chunk(0, at, length, sample=False)])
        at += length
    outputs = m.step([*others(company, len(lengths) - 1), Chunk(0, at, lengths[-1])])
    return outputs.top_logprobs[0].copy()


def others(count: int, at: int) -> list[Chunk]:
    return [Chunk(slot, at, 1, sample=False) for slot in range(1, 1 + count)]


def test_the_same_bits_in_any_chunks_and_company(driven: Machine) -> None:
    whole = drawn(driven, [40], 0)
    assert np.isfinite(whole[:5]).all()
    for lengths, company in (([1, 38, 1], 0), ([17, 23], 1), ([3, 4, 5, 28], 2)):
        np.testing.assert_array_equal(drawn(driven, lengths, company), whole)


def test_no_codes_no_integers() -> None:
    program = segmented(PROGRAMS["dense"])
    layout = Layout(program=program, limits=fitted(limits(), program), isa=HERE, integers=True)
    with pytest.raises(UsageError, match="no matrix of this model is in integer codes"):
        choose_activations(layout, "int8")
    assert not choose_activations(layout, "auto").integers


@pytest.mark.parametrize("isa", ISAS)
def test_the_default_is_int8_where_it_was_measured(isa: str, tmp_path: Path, kernel_cache: Path) -> None:
    """One default, on every target; what the user asks for is left as it is."""
    if isa not in supported_isas(cpu_identity()):
        pytest.skip(f"this CPU cannot run {isa}")
    directory = write_quantized("int4", tmp_path)
    program = load_program(read_config(directory))
    settings = replace(env.read(), isa=isa)
    found = {}
    for wanted in ACTIVATION_DTYPES:
        config = ExecutorConfig(
            cache_dir=kernel_cache, max_num_seqs=1, kv_cache_bytes=1 << 20, activation_dtype=wanted
        )
        executor = load_for(settings, program, directory, config, silent)
        found[wanted] = executor.activation_dtype
        executor.release()
    measured = "int8" if isa.startswith("avx") else "bf16"
    assert found == {"auto": measured, "bf16": "bf16", "int8": "int8"}
