from __future__ import annotations

from dataclasses import replace

import pytest

from firelane.models.registry import load_program
from firelane.program.recipes import Piece, WeightLayout
from firelane.weights.formats.formats import Format
from firelane.weights.packing.plan import PackedWeight, plain_bytes, plan, plan_hash, takes
from tests.models.families import FAMILIES

PROGRAM = load_program(FAMILIES["llama2"]())


def placed(family: str = "llama_bias", dtype: str = "bfloat16") -> dict[str, PackedWeight]:
    return {p.weight.name: p for p in plan(load_program(FAMILIES[family]() | {"torch_dtype": dtype}))}


def test_formats_and_shapes() -> None:
    """hidden 80, MLP 136 (144 packed, twice), vocabulary 261 (288)."""
    found = placed()
    assert (found["embed"].format, found["embed"].shape) == (Format.PANEL_BF16, (9, 40, 32, 2))
    gate_up, bias = found["layers.0.gate_up"], found["layers.0.gate_up_bias"]
    assert (gate_up.gated, gate_up.shape) == (True, (9, 40, 32, 2))
    assert (bias.gated, bias.format, bias.shape) == (True, Format.VECTOR_F32, (288,))
    assert (found["norm"].gated, found["norm"].shape) == (False, (96,))
    assert placed(dtype="float32")["embed"].shape == (9, 80, 32)


def test_tied_weight_is_placed_once() -> None:
    assert "lm_head" not in placed("llama3")
    assert "lm_head" in placed("llama2")


OUTPUT = Piece(tensor="model.layers.0.self_attn.o_proj.weight", shape=(80, 80))
HALF = replace(OUTPUT, take=(range(40),))


@pytest.mark.parametrize(
    "pieces",
    [
        (replace(OUTPUT, tensor="x.weight"),),
        (HALF, HALF),
        (HALF, replace(OUTPUT, take=(range(40, 80),))),
        (replace(OUTPUT, order=(1, 0)),),
        (replace(OUTPUT, view=(5, 8, 2, 80), order=(0, 2, 1, 3)),),
        (replace(OUTPUT, rows=range(80)),),
        (replace(OUTPUT, plus=1.0),),
    ],
    ids=str,
)
def test_hash_covers_the_recipe(pieces: tuple[Piece, ...]) -> None:
    weight = next(p for p in plan(PROGRAM) if p.weight.name == "layers.0.output")
    assert weight.weight.pieces == (OUTPUT,)
    changed = replace(weight, weight=replace(weight.weight, pieces=pieces))
    assert plan_hash((changed,)) != plan_hash((weight,))


def test_hash_covers_the_layout() -> None:
    weight = next(p for p in plan(PROGRAM) if p.weight.name == "layers.0.output")
    gated = replace(weight, weight=replace(weight.weight, layout=WeightLayout.GATED))
    assert plan_hash((gated,)) != plan_hash((weight,))


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
    four, three = (plan(program, dict.fromkeys(names, f)) for f in (Format.PANEL_CODED4, Format.PANEL_CODED3))
    matrices = [w.is_matrix for w in program.weights]
    assert [p.format is Format.PANEL_CODED4 for p in four] == matrices
    downs = [w.shape[-1] == 136 for w in program.weights]
    assert any(downs)
    for p, matrix, down in zip(three, matrices, downs, strict=True):
        plain = Format.PANEL_BF16 if matrix else Format.VECTOR_F32
        assert p.format is (Format.PANEL_CODED3 if matrix and not down else plain)
        assert (p.format is Format.PANEL_CODED3) == takes(p.weight, Format.PANEL_CODED3)
    assert [p.shape for p in three] == [p.shape for p in plan(program)]
    assert len({plan_hash(found) for found in (plan(program), three, four)}) == 3
    assert plain_bytes(three) == plain_bytes(plan(program))
    narrow = load_program(FAMILIES["llama2"]() | {"torch_dtype": "float32"})
    assert plan(narrow, dict.fromkeys(names, Format.PANEL_CODED4)) == plan(narrow)
