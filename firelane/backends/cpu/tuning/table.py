"""What was measured, and what follows: the order of the forms of each product, and when a panel is decoded
once.

A form's gain in a cell is bf16's time over its own, in the same steps. Its score is the weighted sum of the
logarithms of its gains, ROW_WEIGHTS by rows: what a step of decoding does counts most. A loss of more than
TOLERANCE counts LOSS_FACTOR times, so that no form wins at one size what others pay for clearly. Among scores
closer than TIE the smaller form goes first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from firelane.backends.cpu.tuning.projections import FORMS, Projection
from firelane.weights.formats import Format

# Rows of a step: how much its time counts. Of the rows of a tile or whole tiles where tiles are widest
# (12), so that trials need few tile heights.
ROW_WEIGHTS: Mapping[int, float] = {1: 0.35, 8: 0.25, 16: 0.1, 36: 0.2, 504: 0.1}
TOLERANCE = 0.03
LOSS_FACTOR = 3.0
TIE = 0.01
NEVER = 1 << 30  # tiles of rows, where decoding anew for each is always the faster
SMALLEST_FIRST = tuple(reversed(FORMS))


class Cell(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One form of one product, at so many rows, in `tiles` tiles. `once`: its panels were decoded once for
    all tiles. seconds: of one product, the best step's; gain: bf16's best over it; error: half the
    difference of two gains, each from half of the steps (of their logarithms)."""

    projection: str
    form: str
    rows: int
    tiles: int
    once: bool
    seconds: float
    gain: float
    error: float


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Of one form of one product. decode_once_from: tiles of rows; gains: by rows, with that; score: see
    above."""

    form: Format
    decode_once_from: int
    gains: Mapping[int, float]
    score: float


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """How the products of a program should have their weights. `ranking`: best form first, ending with bf16.
    `tables`: forms of embedding tables that no product uses, best first. `source` says where it comes from;
    `cells` are empty where nothing was measured."""

    ranking: Mapping[Projection, tuple[Format, ...]]
    decode_once_from: Mapping[tuple[Projection, Format], int] = field(
        default_factory=dict[tuple[Projection, Format], int]
    )
    tables: tuple[Format, ...] = ()
    source: str
    cells: tuple[Cell, ...] = ()


def rank(verdicts: Sequence[Verdict]) -> tuple[Format, ...]:
    """Forms from the best to bf16; those that lose to bf16 are left out."""
    left = sorted(verdicts, key=lambda v: (-v.score, SMALLEST_FIRST.index(v.form)))
    ranked: list[Format] = []
    while left:
        near = [v for v in left if v.score > left[0].score - TIE]
        best = min(near, key=lambda v: SMALLEST_FIRST.index(v.form))
        left.remove(best)
        ranked.append(best.form)
        if best.form is Format.PANEL_BF16:
            break
    return tuple(ranked)


def judge(cells: Sequence[Cell]) -> list[Verdict]:
    """The forms of one product, from its cells; bf16 among them, with a score of 0."""
    plain = Verdict(form=Format.PANEL_BF16, decode_once_from=NEVER, gains={}, score=0.0)
    forms = dict.fromkeys(Format(c.form) for c in cells)
    return [plain, *(_best_threshold(form, [c for c in cells if c.form == form.value]) for form in forms)]


def _best_threshold(form: Format, cells: Sequence[Cell]) -> Verdict:
    """With the threshold that scores best; the lowest of those as good. There is one just above each number
    of tiles that was measured."""
    measured = sorted({c.tiles for c in cells if c.once})
    thresholds = [2, *(tiles + 1 for tiles in measured[:-1]), NEVER] if measured else [NEVER]
    verdicts = [_with_threshold(form, cells, threshold) for threshold in thresholds]
    return max(verdicts, key=lambda v: (round(v.score, 6), -v.decode_once_from))


def _with_threshold(form: Format, cells: Sequence[Cell], threshold: int) -> Verdict:
    gains = dict(_gains(cells, threshold))
    total = sum(ROW_WEIGHTS[rows] for rows in gains)
    score = sum(ROW_WEIGHTS[rows] * _worth(gain) for rows, gain in gains.items()) / total
    return Verdict(form=form, decode_once_from=threshold, gains=gains, score=score)


def _gains(cells: Sequence[Cell], threshold: int) -> Iterator[tuple[int, float]]:
    for rows in sorted({c.rows for c in cells}):
        ways = {c.once: c for c in cells if c.rows == rows}
        once = True in ways and ways[True].tiles >= threshold
        yield rows, (ways[once] if once in ways else next(iter(ways.values()))).gain


def _worth(gain: float) -> float:
    worth = math.log(gain)
    return worth if gain >= 1 - TOLERANCE else LOSS_FACTOR * worth


def tuning_of(
    projections: Sequence[Projection], cells: Sequence[Cell], *, tables: tuple[Format, ...], source: str
) -> Tuning:
    """What the cells say of each of the products."""
    ranking: dict[Projection, tuple[Format, ...]] = {}
    once: dict[tuple[Projection, Format], int] = {}
    for projection in projections:
        verdicts = judge([c for c in cells if c.projection == str(projection)])
        ranking[projection] = rank(verdicts)
        once |= {(projection, v.form): v.decode_once_from for v in verdicts if v.form.is_window}
    return Tuning(ranking=ranking, decode_once_from=once, tables=tables, source=source, cells=tuple(cells))


def describe(tuning: Tuning) -> str:
    """One line: of each product the best form, and its gains."""
    return ", ".join(_describe(tuning, projection) for projection in tuning.ranking)


def _describe(tuning: Tuning, projection: Projection) -> str:
    form = tuning.ranking[projection][0]
    verdict = next(
        v for v in judge([c for c in tuning.cells if c.projection == str(projection)]) if v.form is form
    )
    gains = ", ".join(f"{gain:.2f}x at {rows}" for rows, gain in verdict.gains.items())
    return f"{projection}: {short_name(form)}" + (f" ({gains} rows)" if gains else "")


def short_name(form: Format) -> str:
    return form.value.removeprefix("panel_")
