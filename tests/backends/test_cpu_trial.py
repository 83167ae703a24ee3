"""Trials: programs that hold each product of a model in every form."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from cpu_harness import HERE, small_spec

from firelane import env
from firelane.backends.cpu.compile import KernelCompiler
from firelane.backends.cpu.tuning import runner
from firelane.backends.cpu.tuning.measure import MeasureConfig, expected_cells
from firelane.backends.cpu.tuning.projections import FORMS, projections
from firelane.backends.cpu.tuning.runner import BusyError, RunnerConfig, Site, TrialRunner
from firelane.backends.cpu.tuning.store import identity
from firelane.backends.cpu.tuning.trial import pieces, trials_of
from firelane.errors import OutOfMemoryError
from firelane.models.dense import dense_program
from firelane.program.ops import Attention, Embed, Linear, Op
from firelane.program.values import DType, Rows
from firelane.weights.formats import Format

PROGRAM = dense_program(small_spec(hidden_size=128, mlp_size=208, windows=(0, 32, 0)))
QUICK = RunnerConfig(most_error=9.0, tries=1, measure=MeasureConfig(slice_s=0.0, budget_s=60.0))


def kinds(ops: tuple[Op, ...]) -> list[str]:
    return [type(op).__name__ for op in ops]


def test_pieces_are_the_program_in_order() -> None:
    cut = pieces(PROGRAM)
    assert tuple(op for piece in cut for op in piece.ops) == PROGRAM.ops
    assert kinds(cut[0].ops) == ["Embed"]
    assert kinds(cut[1].ops) == ["RMSNorm", "Linear", "RopeAndCache", "Attention", "Linear"]
    assert kinds(cut[2].ops) == ["RMSNorm", "GatedLinear", "Linear"]
    assert [kinds(piece.ops) for piece in cut[-4:]] == [["SelectRows"], ["RMSNorm"], ["Linear"], ["Sample"]]
    assert all(a.result == b.source for a, b in pairwise(cut))


def test_each_product_in_each_form() -> None:
    timed = [pair for trial in trials_of(PROGRAM) for pair in trial.timed.values()]
    wanted = [(p, form) for p in set(projections(PROGRAM).values()) for form in p.forms]
    assert sorted(timed, key=str) == sorted(wanted, key=str)


def test_an_op_has_the_form_that_it_is_timed_as() -> None:
    for trial in trials_of(PROGRAM):
        for index, (projection, form) in trial.timed.items():
            (weight, *_) = trial.program.ops[index].weights
            assert weight.shape == (projection.n, projection.k)
            assert trial.forms.get(weight.name, Format.PANEL_BF16) is form


def test_forms_that_a_shape_cannot_have_are_left_out() -> None:
    odd = dense_program(small_spec(hidden_size=104, mlp_size=202))
    timed = {pair for trial in trials_of(odd) for pair in trial.timed.values()}
    forms = {k: {form for p, form in timed if p.k == k} for k in (104, 202)}
    assert forms == {104: {Format.PANEL_BF16, Format.PANEL_WINDOW4}, 202: {Format.PANEL_BF16}}


def test_copies_share_nothing_but_their_input() -> None:
    once, more = trials_of(PROGRAM), trials_of(PROGRAM, least_bytes=2_000_000)
    for small, large in zip(once, more, strict=True):
        assert large.program.weights_bytes >= 2_000_000
        assert len(large.timed) % len(small.timed) == 0
        layers = [op.layer for op in large.program.ops if isinstance(op, Attention)]
        assert len(set(layers)) == len(layers)
        matrices = [w for op in large.program.ops for w in op.weights if len(w.shape) == 2]
        assert len({w.name for w in matrices}) == len(matrices)


def test_tied_embeddings_are_measured_as_the_head() -> None:
    tied = dense_program(small_spec(hidden_size=128, tied_embeddings=True, vocab_size=512))
    (head,) = (t for t in trials_of(tied) if any(p.n == 512 for p, _ in t.timed.values()))
    assert sum(isinstance(op, Linear) for op in head.program.ops) == len(FORMS)
    (table,) = (op.table for op in head.program.ops if isinstance(op, Embed))
    assert table.shape == (64, 128)


def test_float32_has_nothing_to_measure() -> None:
    assert trials_of(dense_program(small_spec(dtype=DType.F32))) == []


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    compiler = KernelCompiler.find(env.read({"HOME": "/"}), tmp_path_factory.mktemp("cache"))
    return Site(compiler=compiler, isa=HERE, threads=2, block_size=16)


def test_run(site: Site) -> None:
    """The real thing, on a small model: compiled, packed, timed."""
    trials = trials_of(PROGRAM)
    told: list[tuple[str, float, float]] = []
    cells = TrialRunner(site, QUICK).run(
        trials, lambda stage, done, total, _: told.append((stage, done, total))
    )
    assert {identity(cell) for cell in cells} == expected_cells(trials, site.isa)
    assert all(0 < cell.seconds < 1 and cell.gain > 0 for cell in cells)
    assert told[0][:2] == ("tune", 0)
    assert told[-1][1] == told[-1][2]
    outputs = {
        str(p)
        for t in trials
        for i, (p, _) in t.timed.items()
        if t.program.ops[i].outputs[0].rows is Rows.OUTPUT
    }
    assert {c.rows for c in cells if c.projection in outputs} < {c.rows for c in cells}


def test_a_machine_that_is_never_quiet(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "mean_error", lambda _: 0.5)
    config = RunnerConfig(tries=1, measure=QUICK.measure)
    with pytest.raises(BusyError, match="times differ by 50%"):
        TrialRunner(site, config).run(trials_of(PROGRAM), lambda *_: None)


def test_memory_is_looked_at_first(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "available_bytes", lambda: 1000)
    with pytest.raises(OutOfMemoryError, match="of memory are needed"):
        TrialRunner(site).run(trials_of(PROGRAM), lambda *_: None)


def test_library_keys_tell_threads_no_but_shapes_yes(site: Site, tmp_path: Path) -> None:
    keys = TrialRunner(site).library_keys(trials_of(PROGRAM))
    other = dense_program(small_spec(hidden_size=128, mlp_size=224))
    assert len(set(keys)) == len(keys)
    assert set(TrialRunner(site).library_keys(trials_of(other))) - set(keys)
    assert not list(tmp_path.iterdir())
