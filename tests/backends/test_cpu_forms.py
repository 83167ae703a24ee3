"""The choice of formats: by mode and machine, and by what compresses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from cpu_harness import small_spec

from firelane.backends.cpu.codegen.forms import CODED_FORMS, FormChoice, choose, wanted_forms
from firelane.native.machine import ISAS
from firelane.program.values import DType, Weight
from firelane.weights.formats.formats import Format
from tests.models.dense import dense_program

W4, W3 = CODED_FORMS
PROGRAM = dense_program(small_spec(hidden_size=128, mlp_size=208, windows=(0,)))
MATRICES = {p.weight.name for p in PROGRAM.products}
USUAL = {W4: 12.1, W3: 11.3}


class Estimate:
    """Bits in each format, the same for all weights but `others`, by the last part of their names."""

    def __init__(self, usual: Mapping[Format, float] = USUAL, **others: Mapping[Format, float]) -> None:
        self.usual, self.others = usual, others
        self.asked: list[str] = []

    def __call__(self, weights: Sequence[Weight]) -> dict[str, Mapping[Format, float]]:
        self.asked += [w.name for w in weights]
        return {w.name: self.others.get(w.name.rpartition(".")[2], self.usual) for w in weights}


@pytest.mark.parametrize("isa", ISAS)
def test_what_each_mode_wants(isa: str) -> None:
    shuffles = isa in ("avx512bf16", "avx512", "avx2")
    usual: Any = SimpleNamespace(weights_bytes=1 << 30)
    tiny: Any = SimpleNamespace(weights_bytes=1 << 23)
    assert wanted_forms("auto", isa, usual) == ((W4,) if shuffles else ())
    assert wanted_forms("auto", isa, tiny) == ()
    for program in (usual, tiny):
        assert wanted_forms("lossless", isa, program) == (W4, W3)
        assert wanted_forms("bf16", isa, program) == ()


def test_without_a_format_no_weight_is_read() -> None:
    estimate = Estimate()
    assert choose(PROGRAM, (), estimate) == FormChoice()
    assert estimate.asked == []


def test_the_smallest_of_each() -> None:
    estimate = Estimate(down={W4: 12.4, W3: 13.0}, qkv={W4: 12.0}, output={})
    forms = choose(PROGRAM, CODED_FORMS, estimate).forms
    assert forms["layers.0.down"] is W4
    assert forms["layers.0.qkv"] is W4
    assert forms["layers.0.gate_up"] is forms["lm_head"] is forms["embed"] is W3
    assert "layers.0.output" not in forms


def test_no_other_format_than_the_wanted() -> None:
    forms = choose(PROGRAM, (W4,), Estimate(output={W3: 11.0})).forms
    assert forms == dict.fromkeys({*MATRICES, "embed"} - {"layers.0.output"}, W4)


def test_saved_bytes() -> None:
    choice = choose(PROGRAM, CODED_FORMS, Estimate({W4: 12.0}))
    matrices = sum(w.nbytes for w in PROGRAM.weights if len(w.shape) == 2)
    assert choice.saved_bytes == matrices // 4


def test_float32_takes_no_part() -> None:
    estimate = Estimate()
    assert choose(dense_program(small_spec(dtype=DType.F32)), CODED_FORMS, estimate) == FormChoice()
    assert estimate.asked == []


def test_a_format_that_the_shape_cannot_have_is_not_asked_for() -> None:
    program = dense_program(small_spec(hidden_size=104, mlp_size=202))
    forms = choose(program, CODED_FORMS, Estimate()).forms
    assert set(forms.values()) == {W4, W3}
    assert {forms.get(p.weight.name) for p in program.products if p.weight.shape[1] == 202} == {None}


def test_tied_embeddings_are_chosen_once() -> None:
    estimate = Estimate()
    tied = dense_program(small_spec(hidden_size=128, tied_embeddings=True))
    assert choose(tied, (W4,), estimate).forms["embed"] is W4
    assert estimate.asked.count("embed") == 1
