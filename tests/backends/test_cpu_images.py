"""Ops of images on the CPU, with every instruction set that the machine runs, against the reference, op by
op."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from firelane.models.config.reader import ConfigReader
from firelane.models.registry import load_program
from firelane.models.towers.qwen3_vl import tower
from firelane.models.towers.tower import ImageTower
from firelane.native.machine import cpu_identity, supported_isas
from firelane.program.images import with_images
from firelane.program.ops import Attention
from firelane.program.ops.merge_rows import IMAGE, PLACED, PLAIN
from firelane.program.reference import ReferenceExecutor
from firelane.program.values import DType
from tests.backends.cpu_harness import Chunk, Machine, apart, limits, machine
from tests.backends.test_cpu_ops import ATTENTION_BOUNDS, BOUNDS, check_step, read
from tests.models.test_multimodal_checkpoints import SPECIAL, TEXT
from tests.models.towers.tower_run import TOWER, WIDE_TOWER, picture

CASES = [(isa, dtype) for isa in supported_isas(cpu_identity()) for dtype in (DType.BF16, DType.F32)]
STEPS = [
    [Chunk(0, 0, 1)],
    [Chunk(0, 1, 32), Chunk(2, 0, 64)],
    [Chunk(2, 64, 1), Chunk(0, 33, 100), Chunk(3, 0, 13, sample=False)],
    [Chunk(3, 13, 20, score=True)],
]


def config(vision: dict[str, Any] = TOWER) -> dict[str, object]:
    made = transformers.Qwen3VLConfig(
        text_config=TEXT | {"num_hidden_layers": 3}, vision_config=vision, **SPECIAL
    )
    return json.loads(made.to_json_string(use_diff=False)) | {
        "architectures": ["Qwen3VLForConditionalGeneration"]
    }


def towers(dtype: DType, vision: dict[str, Any] = TOWER) -> ImageTower:
    return tower(ConfigReader(config(vision)), ConfigReader({}), dtype)


@pytest.mark.parametrize(("isa", "dtype"), CASES)
def test_a_language_model_takes_rows_of_images(isa: str, dtype: DType, kernel_cache: Path) -> None:
    """Rows of all kinds beside each other, in chunks that begin and end anywhere."""
    rows = towers(dtype).rows
    program = with_images(load_program(config(), dtype=dtype), rows)
    sizes = limits(num_blocks=400, max_model_len=240)
    m = machine(program, kernel_cache, isa=isa, sizes=sizes, place=apart)
    reference = ReferenceExecutor(program, m.weights.values, slots=32, max_len=240)
    rng = np.random.default_rng(4)
    for slot in range(4):
        m.greedy(slot, rng.integers(0, 250, 200).tolist())
        m.give_blocks(slot, rng.permutation(100)[: m.executor.limits.blocks_per_seq] + 100 * slot)
    for chunks in STEPS:
        m.inputs.features[:] = rng.standard_normal(m.inputs.features.shape)
        count = len(m.inputs.features)
        m.inputs.features[:, 0] = rng.choice([PLAIN, PLACED, IMAGE], count)
        m.inputs.features[:, 1:4] = rng.integers(0, 1 + min(chunk.start for chunk in chunks), (count, 3))
        check_step(m, reference, chunks)
    m.executor.release()


@pytest.mark.parametrize("number", [0, 1], ids=["blocks", "merger"])
@pytest.mark.parametrize(("isa", "dtype"), CASES)
def test_towers(isa: str, dtype: DType, number: int, kernel_cache: Path) -> None:
    check_tower(towers(dtype), isa, number, kernel_cache)


@pytest.mark.parametrize(("isa", "dtype"), CASES)
def test_heads_that_are_padded(isa: str, dtype: DType, kernel_cache: Path) -> None:
    check_tower(towers(dtype, WIDE_TOWER), isa, 0, kernel_cache)


def check_tower(made: ImageTower, isa: str, number: int, kernel_cache: Path) -> None:
    """Two images, one after the other, in the same places."""
    program = made.programs[number]
    m = machine(program, kernel_cache, isa=isa, sizes=limits(max_num_seqs=1, num_blocks=20), place=apart)
    reference = ReferenceExecutor(program, m.weights.values, slots=1, max_len=320)
    if number == 0:
        m.give_blocks(0, range(20))
    for seed, size in enumerate([(16, 24), (48, 56)]):
        rows = made.patches.rows(picture(seed, *size))
        if number:
            rows = np.random.default_rng(seed).standard_normal((len(rows) // 4, program.features_in))
        m.inputs.features[: len(rows)] = rows
        check_rows(m, reference, len(rows))
    m.executor.release()


def check_rows(m: Machine, reference: ReferenceExecutor, count: int) -> None:
    """A step of a program that tells features alone."""
    m.executor.arena[:] = 0xFF
    told = m.step([Chunk(0, 0, count, sample=False)]).features[:count].copy()
    step = reference.begin(m.inputs, m.executor.state)
    for op in m.executor.layout.program.ops:
        op.reference(step)
        bounds = ATTENTION_BOUNDS if isinstance(op, Attention) else BOUNDS
        for value in op.outputs:
            mine, expected = read(m, value, count), step.read(value)
            error = np.abs(mine - expected).max() / np.abs(expected).max()
            assert error <= bounds[value.dtype], f"{type(op).__name__} {value.name}: error {error:.2e}"
            step.values[value] = mine
    np.testing.assert_array_equal(told, step.features)
