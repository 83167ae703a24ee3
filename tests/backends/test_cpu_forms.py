"""The choice of forms: by mode, by what the tuner found, by what compresses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from cpu_harness import small_spec

from firelane.backends.cpu.forms import Choice, choose
from firelane.backends.cpu.tuning.projections import Projection, projections
from firelane.backends.cpu.tuning.table import Tuning
from firelane.models.dense import dense_program
from firelane.program.program import Program
from firelane.program.values import DType, Weight
from firelane.weights.formats import Format

W4, W3, PLAIN = Format.PANEL_WINDOW4, Format.PANEL_WINDOW3, Format.PANEL_BF16
PROGRAM = dense_program(small_spec(hidden_size=128, mlp_size=208, windows=(0,)))
MATRICES = {w.name: w for w in projections(PROGRAM)}
USUAL = {W4: 12.1, W3: 11.3}


class Census:
    """Bits of each form, the same for all weights but `others`."""

    def __init__(self, usual: Mapping[Format, float] = USUAL, **others: Mapping[Format, float]) -> None:
        self.usual, self.others = usual, others
        self.asked: list[str] = []

    def __call__(self, weights: Sequence[Weight]) -> dict[str, Mapping[Format, float]]:
        self.asked += [w.name for w in weights]
        return {w.name: self.others.get(w.name.rpartition(".")[2], self.usual) for w in weights}


def tuned(*order: Format, once: int = 3, **others: tuple[Format, ...]) -> Tuning:
    """`others`: by the last part of a weight's name."""
    ranking: dict[Projection, tuple[Format, ...]] = {}
    for weight, projection in projections(PROGRAM).items():
        ranking[projection] = others.get(weight.name.rpartition(".")[2], order)
    thresholds = {(p, form): once for p in ranking for form in (W4, W3)}
    return Tuning(ranking=ranking, decode_once_from=thresholds, tables=(W4,), source="test")


def never() -> Tuning:
    pytest.fail("the tuner is not needed")


def auto(tuning: Tuning, census: Census | None = None, program: Program = PROGRAM) -> Choice:
    return choose(program, "auto", lambda: tuning, census or Census())


def test_bf16_asks_nobody() -> None:
    census = Census()
    assert choose(PROGRAM, "bf16", never, census) == Choice()
    assert census.asked == []


def test_lossless_takes_the_smallest_of_each() -> None:
    census = Census(down={W4: 12.4, W3: 13.0}, qkv={W4: 12.0}, output={})
    forms = choose(PROGRAM, "lossless", never, census).forms
    assert forms["layers.0.down"] is W4
    assert forms["layers.0.qkv"] is W4
    assert forms["layers.0.gate_up"] is forms["lm_head"] is forms["embed"] is W3
    assert "layers.0.output" not in forms


def test_auto_takes_the_best_that_compresses() -> None:
    tuning = tuned(W3, W4, PLAIN, down=(W4, PLAIN), gate_up=(PLAIN,))
    forms = auto(tuning, Census(output={W4: 13.0}, lm_head={})).forms
    assert forms == {"embed": W4, "layers.0.qkv": W3, "layers.0.output": W4, "layers.0.down": W4}


def test_auto_reads_no_weights_where_bf16_is_best() -> None:
    census = Census()
    tuning = Tuning(ranking=dict.fromkeys(projections(PROGRAM).values(), (PLAIN,)), source="test")
    assert auto(tuning, census) == Choice()
    assert census.asked == []


def test_thresholds_go_with_the_forms() -> None:
    choice = auto(tuned(W4, PLAIN, once=7, down=(PLAIN,)))
    assert choice.decode_once_from == dict.fromkeys(set(MATRICES) - {"layers.0.down"}, 7)
    assert choose(PROGRAM, "lossless", never, Census()).decode_once_from == {}


def test_saved_bytes() -> None:
    choice = choose(PROGRAM, "lossless", never, Census({W4: 12.0}))
    matrices = sum(w.nbytes for w in PROGRAM.weights if len(w.shape) == 2)
    assert choice.saved_bytes == matrices // 4


def test_float32_takes_no_part() -> None:
    program = dense_program(small_spec(dtype=DType.F32))
    census = Census()
    assert choose(program, "lossless", never, census) == Choice()
    assert auto(Tuning(ranking={}, tables=(W4,), source="test"), census, program) == Choice()
    assert census.asked == []


def test_a_form_that_the_shape_cannot_have_is_not_asked_for() -> None:
    program = dense_program(small_spec(hidden_size=104, mlp_size=202))
    forms = choose(program, "lossless", never, Census()).forms
    assert set(forms.values()) == {W4, W3}
    assert {forms.get(w.name) for w in projections(program) if w.shape[1] == 202} == {None}


def test_tied_embeddings_are_chosen_as_the_head() -> None:
    tied = dense_program(small_spec(hidden_size=128, tied_embeddings=True))
    ranking = {p: (W3, PLAIN) for p in projections(tied).values()}
    assert auto(Tuning(ranking=ranking, tables=(W4,), source="test"), program=tied).forms["embed"] is W3
