"""From measured cells to a choice, and how tables are kept."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from cpu_harness import HERE, small_spec
from hypothesis import given
from hypothesis import strategies as st

from firelane import env
from firelane.backends.cpu.compile import KernelCompiler
from firelane.backends.cpu.tuning import store
from firelane.backends.cpu.tuning.measure import expected_cells, tiles
from firelane.backends.cpu.tuning.projections import FORMS, projections
from firelane.backends.cpu.tuning.runner import BusyError, Site
from firelane.backends.cpu.tuning.table import NEVER, ROW_WEIGHTS, Cell, judge, rank
from firelane.backends.cpu.tuning.trial import Trial
from firelane.backends.cpu.tuning.tuner import Tuner, TunerConfig
from firelane.errors import MachineError
from firelane.models.dense import dense_program
from firelane.program.values import DType
from firelane.weights.formats import Format

W4, W3, PLAIN = Format.PANEL_WINDOW4, Format.PANEL_WINDOW3, Format.PANEL_BF16
PROGRAM = dense_program(small_spec(hidden_size=128, mlp_size=208))
MEASURE_ALL = TunerConfig(least_bytes=0)
GAINS = st.floats(0.3, 3.0)


def cells(form: Format, again: dict[int, float], once: dict[int, float] | None = None) -> list[Cell]:
    """Gains by rows: decoded for each tile, and decoded once."""
    return [
        Cell(
            projection="Linear 8x16",
            form=form.value,
            rows=rows,
            tiles=tiles(rows, "avx512"),
            once=way,
            seconds=1e-3,
            gain=gain,
            error=0.0,
        )
        for way, gains in ((False, again), (True, once or {}))
        for rows, gain in gains.items()
    ]


def ranking(*measured: list[Cell]) -> tuple[Format, ...]:
    return rank(judge([cell for part in measured for cell in part]))


def flat(gain: float) -> dict[int, float]:
    return dict.fromkeys(ROW_WEIGHTS, gain)


def test_the_faster_form_wins() -> None:
    assert ranking(cells(W4, flat(1.3)), cells(W3, flat(1.2))) == (W4, W3, PLAIN)
    assert ranking(cells(W4, flat(1.2)), cells(W3, flat(1.3))) == (W3, W4, PLAIN)
    assert ranking(cells(W4, flat(0.9)), cells(W3, flat(1.1))) == (W3, PLAIN)
    assert ranking(cells(W4, flat(0.9))) == (PLAIN,)
    assert ranking() == (PLAIN,)


def test_ties_go_to_the_smaller_form() -> None:
    assert ranking(cells(W4, flat(1.2)), cells(W3, flat(1.195))) == (W3, W4, PLAIN)
    assert ranking(cells(W4, flat(0.995))) == (W4, PLAIN)


def test_decoding_counts_most() -> None:
    gains = {1: 1.3, 8: 1.2, 16: 1.1, 36: 0.98, 504: 0.98}
    assert ranking(cells(W4, gains)) == (W4, PLAIN)
    assert ranking(cells(W4, {rows: 1 / gain for rows, gain in gains.items()})) == (PLAIN,)


def test_a_clear_loss_has_to_be_outweighed_clearly() -> None:
    slower = {**flat(1.0), 1: 1.1, 36: 0.9}
    assert sum(ROW_WEIGHTS[r] * (g - 1) for r, g in slower.items()) > 0
    assert ranking(cells(W4, slower)) == (PLAIN,)
    assert ranking(cells(W4, {**slower, 1: 1.3})) == (W4, PLAIN)


@given(st.lists(st.fixed_dictionaries(dict.fromkeys(ROW_WEIGHTS, GAINS)), min_size=2, max_size=2))
def test_a_form_never_goes_before_one_that_is_faster_at_all_sizes(gains: list[dict[int, float]]) -> None:
    first, second = gains
    order = ranking(cells(W4, first), cells(W3, second))
    assert order[-1] is PLAIN
    assert len(set(order)) == len(order)
    if all(first[rows] > second[rows] * 1.05 for rows in ROW_WEIGHTS) and W3 in order:
        assert order.index(W4) < order.index(W3)
    if all(gain > 1 for gain in first.values()):
        assert W4 in order


def threshold(again: dict[int, float], once: dict[int, float]) -> int:
    single = {1: 1.0, 8: 1.0}
    return judge(cells(W4, single | again, once))[1].decode_once_from


def test_where_decoding_once_begins_to_pay() -> None:
    slow, fast = 0.8, 1.0
    assert threshold({16: slow, 36: slow, 504: slow}, {16: fast, 36: fast, 504: fast}) == 2
    assert threshold({16: fast, 36: slow, 504: slow}, {16: slow, 36: fast, 504: fast}) == 3
    assert threshold({16: fast, 36: fast, 504: slow}, {16: slow, 36: slow, 504: fast}) == 4
    assert threshold({16: fast, 36: fast, 504: fast}, {16: slow, 36: slow, 504: slow}) == NEVER


def test_gains_are_those_of_the_chosen_way() -> None:
    verdict = judge(cells(W4, {1: 1.3, 16: 1.2, 36: 0.8}, {16: 1.0, 36: 0.9}))[1]
    assert verdict.gains == {1: 1.3, 16: 1.2, 36: 0.9}


# Kept tables


class FakeRunner:
    """Gives gains without measuring; `runs` counts."""

    def __init__(self, gains: dict[Format, float], error: Exception | None = None) -> None:
        self.gains, self.error, self.runs = gains, error, 0

    def library_keys(self, trials: list[Trial]) -> list[str]:
        return [repr(sorted(map(str, trial.timed.values()))) for trial in trials]

    def run(self, trials: list[Trial], progress: object) -> list[Cell]:
        del progress
        self.runs += 1
        if self.error is not None:
            raise self.error
        return [
            Cell(
                projection=projection,
                form=form,
                rows=rows,
                tiles=tiles(rows, HERE),
                once=once,
                seconds=1e-3,
                gain=self.gains[Format(form)],
                error=0.01,
            )
            for projection, form, rows, once in sorted(expected_cells(trials, HERE))
        ]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    compiler = KernelCompiler.find(env.read({"HOME": "/"}), tmp_path)
    return Site(compiler=compiler, isa=HERE, threads=2, block_size=16)


def silent(*_: object) -> None:
    pass


def kept(site: Site) -> Path:
    (path,) = (site.compiler.cache_dir / "tuning").glob("*.json")
    return path


def test_measured_once(site: Site) -> None:
    first = FakeRunner({W4: 1.3, W3: 1.1})
    tuning = Tuner(site, MEASURE_ALL, first).tune(PROGRAM, silent)
    assert set(tuning.ranking) == set(projections(PROGRAM).values())
    assert all(order[0] is W4 for order in tuning.ranking.values())
    second = FakeRunner({W4: 0.5, W3: 0.5})
    again = Tuner(site, MEASURE_ALL, second).tune(PROGRAM, silent)
    assert (again.ranking, again.decode_once_from) == (tuning.ranking, tuning.decode_once_from)
    assert (first.runs, second.runs) == (1, 0)
    assert str(kept(site)) in again.source
    forced = Tuner(site, MEASURE_ALL, second).tune(PROGRAM, silent, force=True)
    assert all(order == (PLAIN,) for order in forced.ranking.values())
    assert {p.suffix for p in kept(site).parent.iterdir()} == {".json", ".lock"}


def test_other_shapes_and_threads_have_other_tables(site: Site) -> None:
    runner = FakeRunner({W4: 1.3, W3: 1.1})
    Tuner(site, MEASURE_ALL, runner).tune(PROGRAM, silent)
    wider = dense_program(small_spec(hidden_size=128, mlp_size=224))
    Tuner(site, MEASURE_ALL, runner).tune(wider, silent)
    alone = Site(compiler=site.compiler, isa=HERE, threads=1, block_size=16)
    Tuner(alone, MEASURE_ALL, runner).tune(PROGRAM, silent)
    assert runner.runs == 3


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda _: "",
        lambda _: "[]",
        lambda text: text.replace('"gain": 1.3', '"gain": 1.4', 1),
        lambda text: text.replace('"rows": 8', '"rows": 9', 1),
        lambda text: text.replace('"version": 1', '"version": 2'),
        lambda text: text.replace('"seconds"', '"minutes"', 1),
        lambda _: "[" * 100_000,
    ],
)
def test_a_damaged_table_is_measured_again(site: Site, damage) -> None:
    runner = FakeRunner({W4: 1.3, W3: 1.1})
    Tuner(site, MEASURE_ALL, runner).tune(PROGRAM, silent)
    text = kept(site).read_text()
    assert damage(text) != text
    kept(site).write_text(damage(text))
    Tuner(site, MEASURE_ALL, runner).tune(PROGRAM, silent)
    assert runner.runs == 2
    assert kept(site).read_text() == text


def rewritten(path: Path, change) -> None:
    """With a digest that fits."""
    table = json.loads(path.read_text())
    made = msgspec.convert(change(table["content"]["cells"]), list[Cell])
    store.write(path, path.stem, made, 1.0)


@pytest.mark.parametrize(
    "change",
    [
        lambda cells: cells[1:],
        lambda cells: [*cells, cells[0]],
        lambda cells: [{**cells[0], "gain": 0.0}, *cells[1:]],
        lambda cells: [{**cells[0], "seconds": -1.0}, *cells[1:]],
        lambda cells: [{**cells[0], "form": "panel_window5"}, *cells[1:]],
    ],
)
def test_a_table_that_cannot_be_is_measured_again(site: Site, change) -> None:
    runner = FakeRunner({W4: 1.3, W3: 1.1})
    Tuner(site, MEASURE_ALL, runner).tune(PROGRAM, silent)
    rewritten(kept(site), change)
    Tuner(site, MEASURE_ALL, runner).tune(PROGRAM, silent)
    assert runner.runs == 2


def test_a_table_under_another_name_is_measured_again(site: Site) -> None:
    runner = FakeRunner({W4: 1.3, W3: 1.1})
    Tuner(site, MEASURE_ALL, runner).tune(PROGRAM, silent)
    table = kept(site).read_bytes()
    wider = dense_program(small_spec(hidden_size=128, mlp_size=224))
    Tuner(site, MEASURE_ALL, runner).tune(wider, silent)
    for path in kept_all(site):
        path.write_bytes(table)
    Tuner(site, MEASURE_ALL, runner).tune(PROGRAM, silent)
    Tuner(site, MEASURE_ALL, runner).tune(wider, silent)
    assert runner.runs == 3


def kept_all(site: Site) -> list[Path]:
    return list((site.compiler.cache_dir / "tuning").glob("*.json"))


def test_a_small_program_is_not_measured(site: Site) -> None:
    runner = FakeRunner({})
    tuning = Tuner(site, runner=runner).tune(PROGRAM, silent)
    assert runner.runs == 0
    assert "default rule" in tuning.source
    assert {order[:-1] for order in tuning.ranking.values()} <= {(W4,), ()}
    assert kept_all(site) == []


@pytest.mark.parametrize("error", [BusyError("busy"), OSError(12, "no memory"), MachineError("no compiler")])
def test_what_cannot_be_measured_takes_the_default_and_is_tried_again(site: Site, error: Exception) -> None:
    runner = FakeRunner({W4: 1.3, W3: 1.1}, error)
    tuning = Tuner(site, MEASURE_ALL, runner).tune(PROGRAM, silent)
    assert tuning.ranking == Tuner(site, runner=runner).tune(PROGRAM, silent).ranking
    assert "default rule" in tuning.source
    runner.error = None
    assert "measured in" in Tuner(site, MEASURE_ALL, runner).tune(PROGRAM, silent).source


def test_float32_is_not_measured(site: Site) -> None:
    runner = FakeRunner({})
    tuning = Tuner(site, MEASURE_ALL, runner).tune(dense_program(small_spec(dtype=DType.F32)), silent)
    assert (dict(tuning.ranking), runner.runs) == ({}, 0)


def test_all_forms_are_compared() -> None:
    assert FORMS == (PLAIN, W4, W3)
