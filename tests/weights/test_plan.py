from __future__ import annotations

from dataclasses import replace

import pytest

from firelane.models.registry import load_program
from firelane.program.ops import Linear
from firelane.program.program import Program
from firelane.weights.formats import Format
from firelane.weights.plan import PackedWeight, plain_bytes, plan, plan_hash, takes
from tests.models.families import FAMILIES


def placed(family: str = "llama_bias", dtype: str = "bfloat16") -> dict[str, PackedWeight]:
    return {p.weight.name: p for p in plan(load_program(FAMILIES[family]() | {"torch_dtype": dtype}))}


def test_formats_and_shapes() -> None:
    """hidden 80, MLP 136 (144 interleaved, twice), vocabulary 261 (288)."""
    found = placed()
    assert (found["embed"].format, found["embed"].shape) == (Format.PANEL_BF16, (9, 40, 32, 2))
    gate_up, bias = found["layers.0.gate_up"], found["layers.0.gate_up_bias"]
    assert (gate_up.interleave, gate_up.shape) == (True, (9, 40, 32, 2))
    assert (bias.interleave, bias.format, bias.shape) == (True, Format.VECTOR_F32, (288,))
    assert (found["norm"].interleave, found["norm"].shape) == (False, (96,))
    assert placed(dtype="float32")["embed"].shape == (9, 80, 32)


def test_tied_weight_is_placed_once() -> None:
    assert "lm_head" not in placed("llama3")
    assert "lm_head" in placed("llama2")


@pytest.mark.parametrize(
    "change",
    [
        {"tensors": ("x.weight",)},
        {"parts": (40, 40), "tensors": ("a", "b")},
    ],
    ids=str,
)
def test_hash_covers_where_rows_come_from(change: dict[str, tuple[object, ...]]) -> None:
    program = load_program(FAMILIES["llama2"]())
    op = next(op for op in program.ops if isinstance(op, Linear) and op.weight.name == "layers.0.output")
    changed = replace(op, weight=replace(op.weight, **change))
    ops = tuple(changed if other is op else other for other in program.ops)
    other = Program(name="llama", vocab_size=261, max_model_len=256, ops=ops)
    assert plan_hash(plan(other)) != plan_hash(plan(program))


def test_hash_and_total() -> None:
    program = load_program(FAMILIES["llama2"]())
    wide = load_program(FAMILIES["llama2"]() | {"torch_dtype": "bfloat16"})
    assert plan_hash(plan(program)) == plan_hash(plan(load_program(FAMILIES["llama2"]())))
    assert plan_hash(plan(program)) != plan_hash(plan(wide))
    assert plain_bytes(plan(program)) >= program.weights_bytes
    assert plain_bytes(()) == 0


def test_forms() -> None:
    """Hidden size 80 takes both, the MLP's 136 is no multiple of 16, a vector and float32 take none."""
    program = load_program(FAMILIES["llama2"]() | {"torch_dtype": "bfloat16"})
    names = [w.name for w in program.weights]
    four, three = (
        plan(program, dict.fromkeys(names, f)) for f in (Format.PANEL_WINDOW4, Format.PANEL_WINDOW3)
    )
    matrices = [len(w.shape) == 2 for w in program.weights]
    assert [p.format is Format.PANEL_WINDOW4 for p in four] == matrices
    downs = [w.shape[-1] == 136 for w in program.weights]
    assert any(downs)
    for p, matrix, down in zip(three, matrices, downs, strict=True):
        plain = Format.PANEL_BF16 if matrix else Format.VECTOR_F32
        assert p.format is (Format.PANEL_WINDOW3 if matrix and not down else plain)
        assert (p.format is Format.PANEL_WINDOW3) == takes(p.weight, Format.PANEL_WINDOW3)
    assert [p.shape for p in three] == [p.shape for p in plan(program)]
    assert len({plan_hash(found) for found in (plan(program), three, four)}) == 3
    assert plain_bytes(three) == plain_bytes(plan(program))
    narrow = load_program(FAMILIES["llama2"]() | {"torch_dtype": "float32"})
    assert plan(narrow, dict.fromkeys(names, Format.PANEL_WINDOW4)) == plan(narrow)
