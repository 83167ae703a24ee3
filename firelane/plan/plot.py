"""Plans as SVG: what the fullest device holds in each layout, and tokens a second beside the time of one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, log10

from firelane.plan.estimate import GIB, Estimate, PlanSetup

PARTS = (
    ("weights", "#3b6fb6"),
    ("activations", "#7fb069"),
    ("workspace", "#c9a227"),
    ("communication", "#b56576"),
    ("runtime", "#8d99ae"),
)
KV_COLOUR = "#e8eef7"
LINE_COLOURS = ("#3b6fb6", "#b56576", "#7fb069", "#c9a227", "#6d597a", "#2a9d8f", "#8d99ae", "#d1495b")
LEFT, BAR, GAP, WIDTH, PLOT_HEIGHT = 270, 18, 8, 860, 300
MOST_BARS = 40


@dataclass(frozen=True)
class Scale:
    """From a value to a place on an axis; by powers of ten where `log`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        if self.log:
            part = log10(value / self.low) / log10(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return self.start + part * (self.end - self.start)

    def ticks(self) -> list[float]:
        if self.log:
            first, last = ceil(log10(self.low) - 1e-9), int(log10(self.high) + 1e-9)
            return [10.0**power for power in range(first, last + 1)]
        step = 10 ** int(log10(self.high))
        step = next(s for s in (step / 5, step / 2, step, step * 2) if self.high / s <= 10)
        return [step * i for i in range(int(self.high / step) + 1)]


def draw(setup: PlanSetup, estimates: Sequence[Estimate]) -> str:
    """One bar for each layout, form and KV dtype that fits, and below for each of them one line of points, by
    batch."""
    rows = _rows(estimates)
    bars = _bars(setup, rows)
    top = 60 + len(rows) * (BAR + GAP)
    speeds = _speeds(rows, top + 60)
    height = top + PLOT_HEIGHT + 130
    title = f"{setup.model.program.name} on {setup.device.title}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            'font-family="sans-serif" font-size="12">',
            f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
            _text(LEFT, 20, title, size=15),
            *_legend(),
            *bars,
            *speeds,
            "</svg>\n",
        ]
    )


def _rows(estimates: Sequence[Estimate]) -> dict[str, list[Estimate]]:
    """Layouts that fit, by what they are called, in the order of their batches."""
    found: dict[str, list[Estimate]] = {}
    for e in estimates:
        if not e.problem:
            found.setdefault(f"{e.layout}; {e.form}, KV {e.kv_dtype}", []).append(e)
    return {name: found[name] for name in list(found)[:MOST_BARS]}


def _bars(setup: PlanSetup, rows: dict[str, list[Estimate]]) -> Iterable[str]:
    most = setup.device.memory_bytes / GIB
    scale = Scale(0.0, most, LEFT, WIDTH - 20)
    for number, (name, found) in enumerate(rows.items()):
        y, at = 50 + number * (BAR + GAP), 0.0
        memory = found[0].fullest
        yield _text(LEFT - 8, y + BAR - 5, name, anchor="end")
        for part, colour in PARTS:
            size = getattr(memory, part) / GIB
            yield _bar(scale.at(at), y, scale.at(at + size), colour, f"{part} {size:.1f} GiB")
            at += size
        yield _bar(
            scale.at(at), y, scale.at(at + memory.left / GIB), KV_COLOUR, f"left {memory.left / GIB:.1f} GiB"
        )
    y = 50 + len(rows) * (BAR + GAP) + 12
    for tick in scale.ticks():
        yield _text(scale.at(tick), y, f"{tick:g}", anchor="middle")
    yield _text(WIDTH - 20, y + 14, "GiB of the fullest device", anchor="end")


def _legend() -> Iterable[str]:
    x = LEFT
    for name, colour in (*PARTS, ("left for the KV cache", KV_COLOUR)):
        yield _bar(x, 30, x + 10, colour, name, height=10)
        yield _text(x + 14, 39, name)
        x += 22 + 6.3 * len(name)


def _speeds(rows: dict[str, list[Estimate]], top: float) -> Iterable[str]:
    """Tokens a second above milliseconds a token, both by powers of ten."""
    points = [(e.decode_s * 1e3, e.tokens_per_s) for found in rows.values() for e in found]
    if not points:
        return
    x = Scale(*_decades(p[0] for p in points), LEFT, WIDTH - 20, log=True)
    y = Scale(*_decades(p[1] for p in points), top + PLOT_HEIGHT, top, log=True)
    for tick in x.ticks():
        yield _line(x.at(tick), y.start, x.at(tick), y.end)
        yield _text(x.at(tick), y.start + 16, f"{tick:g}", anchor="middle")
    for tick in y.ticks():
        yield _line(x.start, y.at(tick), x.end, y.at(tick))
        yield _text(x.start - 6, y.at(tick) + 4, f"{tick:,.0f}", anchor="end")
    yield _text(x.end, y.start + 34, "milliseconds from one token of a sequence to the next", anchor="end")
    yield _text(x.start - 6, y.end - 10, "tokens a second", anchor="end")
    for number, (name, found) in enumerate(rows.items()):
        colour = LINE_COLOURS[number % len(LINE_COLOURS)]
        places = [(x.at(e.decode_s * 1e3), y.at(e.tokens_per_s)) for e in found]
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in places)
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
        for (px, py), e in zip(places, found, strict=True):
            load = f"{e.workload.batch} x {e.workload.context} tokens"
            yield _point(px, py, colour, f"{name}: {load}, {e.tokens_per_s:,.0f} tok/s")


def _point(x: float, y: float, colour: str, title: str) -> str:
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"><title>{escape(title)}</title></circle>'
    )


def _decades(values: Iterable[float]) -> tuple[float, float]:
    """Powers of ten around them."""
    found = list(values)
    low, high = log10(min(found)), log10(max(found))
    return 10.0 ** int(low // 1), 10.0 ** max(ceil(high), int(low // 1) + 1)


def _bar(x: float, y: float, end: float, colour: str, title: str, height: float = BAR) -> str:
    width = max(0.0, end - x)
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}" fill="{colour}">'
        f"<title>{escape(title)}</title></rect>"
    )


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'


def _line(x: float, y: float, to_x: float, to_y: float) -> str:
    return f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" stroke="#ddd"/>'
