"""The figures of benchmarks/lossless.py as Markdown."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lossless_figures import (
    AUTO,
    BF16,
    LOSSLESS,
    AtRest,
    Conditions,
    Figures,
    Peer,
    Starts,
    Step,
    Steps,
    best_ratio,
    median_ratio,
)
from lossless_published import PUBLISHED
from lossless_starts import FIRST, LATER

from firelane.bench.table import format_table

PLAIN_VARIANT, PACKED_VARIANT = "bf16 directory", "packed directory"
PAGE_MARKS = ("<!-- lossless -->", "<!-- /lossless -->")


@dataclass(frozen=True, kw_only=True)
class Requirement:
    """`must` and `aim` are bounds from below, or from above where `at_most`; `aim` may be None."""

    what: str
    must: float
    aim: float | None
    value: float | None
    at_most: bool = False
    unit: str = ""

    @property
    def verdict(self) -> str:
        if self.value is None or math.isnan(self.value):
            return "not measured"
        if self.aim is not None and self._holds(self.value, self.aim):
            return "aim reached"
        return "met" if self._holds(self.value, self.must) else "missed"

    def _holds(self, value: float, bound: float) -> bool:
        return value <= bound if self.at_most else value >= bound

    def cells(self) -> list[str]:
        sign = "≤" if self.at_most else "≥"
        aim = "" if self.aim is None else f"{sign} {self.aim:.2f}{self.unit}"
        return [self.what, f"{sign} {self.must:.2f}{self.unit}", aim, self.measured, self.verdict]

    @property
    def measured(self) -> str:
        return "-" if self.value is None else f"{self.value:.{3 if self.at_most else 2}f}{self.unit}"


def requirements(figures: Figures) -> list[Requirement]:
    """All rows, whether they were measured or not. Ratios of speed are medians over the rounds."""
    return [
        *size_requirements(figures.at_rest, figures.steps),
        *speed_requirements(figures.steps, figures.peer),
        *codec_requirements(figures.at_rest),
        *start_requirements(figures.starts),
    ]


def size_requirements(rest: AtRest | None, steps: Steps | None) -> Iterator[Requirement]:
    share = rest and rest.packed_bytes / rest.original_bytes
    yield Requirement(
        what="size at rest / bf16, all bf16 tensors", must=0.70, aim=0.67, value=share, at_most=True
    )
    for form in (LOSSLESS, AUTO):
        share = resident_share(steps, form)
        what = f"resident weights / bf16: {form}"
        yield Requirement(what=what, must=0.76, aim=0.73, value=share, at_most=True)


def speed_requirements(steps: Steps | None, peer: Peer | None) -> Iterator[Requirement]:
    for form in (LOSSLESS, AUTO):
        value = speed_up(steps, "decode, 1", form)
        yield Requirement(what=f"decode, 1: {form} / our bf16", must=1.22, aim=1.3, value=value, unit="x")
    for form in (LOSSLESS, AUTO):
        value = peer and to_peer(peer, form)
        what = f"decode, 1: {form} / llama.cpp bf16"
        yield Requirement(what=what, must=1.2, aim=1.3, value=value, unit="x")
    for name, aim in {"decode, 8": 1.1, "decode, 32": None, "prefill, 512": None}.items():
        value = speed_up(steps, name, AUTO)
        yield Requirement(what=f"{name}: auto / our bf16", must=1.0, aim=aim, value=value, unit="x")


def codec_requirements(rest: AtRest | None) -> Iterator[Requirement]:
    yield Requirement(
        what="decode of the at-rest form, bf16 bytes out, per core",
        must=1.5,
        aim=3.0,
        value=rest and rest.file_decode_gbps,
        unit=" GB/s",
    )
    value = rest and rest.command_pack_gbps
    yield Requirement(what="pack, per core", must=0.3, aim=1.0, value=value, unit=" GB/s")


def start_requirements(starts: Starts | None) -> Iterator[Requirement]:
    for case in (FIRST, LATER):
        yield Requirement(
            what=f"cold start, {case}: packed directory / bf16 directory, time",
            must=0.85,
            aim=0.72,
            value=starts and start_share(starts, case),
            at_most=True,
        )


def resident_share(steps: Steps | None, form: str) -> float | None:
    if steps is None or form not in steps.resident_bytes:
        return None
    return steps.resident_bytes[form] / steps.resident_bytes[BF16]


def speed_up(steps: Steps | None, name: str, form: str) -> float | None:
    for step in steps.steps if steps else ():
        if step.name == name and form in step.seconds:
            return median_ratio(step.seconds[BF16], step.seconds[form])
    return None


def to_peer(peer: Peer, form: str) -> float | None:
    if form not in peer.seconds:
        return None
    return median_ratio(peer.seconds[peer.peer], peer.seconds[form])


def start_share(starts: Starts, case: str) -> float:
    """Time from the packed directory over that from the bf16 directory."""
    seconds = starts.seconds[case]
    return median_ratio(seconds[PACKED_VARIANT], seconds[PLAIN_VARIANT])


def render(figures: Figures) -> str:
    """The whole page. Parts that were not measured are left out."""
    rows = [r.cells() for r in requirements(figures)]
    sections = [
        "# Lossless weights: size, speed, starts",
        f"Model: {figures.model}. Ratios of speed are medians over rounds in turns.",
        format_table(["what", "must", "aim", "measured", ""], rows),
        "![Bits per weight, and speed-up over bf16](lossless.svg)",
    ]
    if figures.at_rest is not None:
        sections += at_rest_section(figures.at_rest)
    if figures.steps is not None:
        sections += steps_section(figures.steps)
    if figures.peer is not None:
        sections += peer_section(figures.peer)
    if figures.starts is not None:
        sections += starts_section(figures.starts)
    return "\n\n".join([*sections, *published_section()]) + "\n"


def fill_page(text: str, figures: Figures, folder: str) -> str:
    """The page with the plot (in `folder`) and what was measured between PAGE_MARKS. ValueError without
    those."""
    rows = [[r.what, r.measured] for r in requirements(figures) if r.value is not None]
    block = "\n\n".join(
        [
            f"![Bits per weight, and speed-up over bf16 by rows]({folder}/lossless.svg)",
            format_table(["lossless weights", "measured"], rows),
        ]
    )
    begin, end = (text.index(mark) for mark in PAGE_MARKS)
    return f"{text[: begin + len(PAGE_MARKS[0])]}\n{block}\n{text[end:]}"


def conditions(c: Conditions) -> str:
    made = f"{c.machine}; {c.versions}; commit {c.commit}, {c.date}; scheduling: {c.priority}."
    return f"`{c.command}`\n\n{made}"


def at_rest_section(rest: AtRest) -> Iterator[str]:
    yield "## At rest"
    yield conditions(rest.conditions)
    bits = 8 * rest.packed_bytes / rest.weights
    whole = ["packed files, all that is in them", bits, rest.command_pack_gbps, rest.file_decode_gbps]
    coders = [[c.name, c.bits, c.pack_gbps, c.unpack_gbps] for c in rest.coders]
    limit = ["limit: 8 bits and the entropy of each tensor's exponents", rest.limit_bits, math.nan, math.nan]
    header = ["form", "bits a weight", "of bf16", "pack, GB/s a core", "unpack, GB/s a core"]
    rows = [[n, f"{b:.3f}", f"{b / 16:.4f}", number(p), number(u)] for n, b, p, u in [whole, *coders, limit]]
    yield format_table(header, rows)
    yield (
        f"{rest.weights / 1e6:.1f} M bf16 weights: {rest.original_bytes / 1e9:.3f} GB of files, packed "
        f"{rest.packed_bytes / 1e9:.3f} GB. GB of bf16. The files' speeds: `firelane pack` reading, "
        "digesting, coding and writing, by CPU time; all tensors read back through Checkpoint in one thread, "
        "page cache warm, checksums checked. The others: in memory, one thread; zstd -19 on a sixteenth of "
        "that sample."
    )


def number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.2f}"


def steps_section(steps: Steps) -> Iterator[str]:
    yield "## In memory"
    yield conditions(steps.conditions)
    plain = steps.resident_bytes[BF16]
    yield format_table(
        ["--weights", "GB resident", "of bf16", "bits a weight", "matrices"],
        [
            [form, f"{n / 1e9:.3f}", f"{n / plain:.4f}", f"{8 * n / steps.weights:.2f}", steps.forms[form]]
            for form, n in steps.resident_bytes.items()
        ],
    )
    yield f"In the checkpoint: {steps.checkpoint_bytes / 1e9:.3f} GB."
    if steps.notes:
        yield "The log of the choice:\n\n```\n" + "\n".join(steps.notes) + "\n```"
    yield "## Speed in the step"
    forms = [form for form in steps.resident_bytes if form != BF16]
    header = [
        "step",
        "bf16, ms",
        *(f"{f}, ms" for f in forms),
        *(f"{f} / bf16, median (best)" for f in forms),
    ]
    yield format_table(header, [step_row(step, forms) for step in steps.steps])
    rounds = len(steps.steps[0].read_gbps) if steps.steps else 0
    yield (
        f"{steps.threads} threads; times of the best of {rounds} rounds; ratios of speed: the median of "
        "the rounds' ratios, and that of the best times. Bytes that a step moves at least (weights and KV), "
        "over its median time, against the streaming read measured in the same rounds:"
    )
    header = ["step", "streaming read, GB/s", *(f"{f}: GB, GB/s, of limit" for f in (BF16, *forms))]
    yield format_table(header, [bytes_row(step, [BF16, *forms]) for step in steps.steps])


def step_row(step: Step, forms: Sequence[str]) -> list[str]:
    times = [f"{min(step.seconds[form]) * 1e3:.2f}" for form in (BF16, *forms)]
    base = step.seconds[BF16]
    ratios = [(median_ratio(base, step.seconds[f]), best_ratio(base, step.seconds[f])) for f in forms]
    return [step.name, *times, *(f"{median:.2f}x ({best:.2f}x)" for median, best in ratios)]


def bytes_row(step: Step, forms: Sequence[str]) -> list[str]:
    limit = statistics.median(step.read_gbps)
    cells = [step.name, f"{limit:.1f}"]
    for form in forms:
        rates = [step.moved_bytes[form] / s / 1e9 for s in step.seconds[form]]
        share = statistics.median(r / g for r, g in zip(rates, step.read_gbps, strict=True))
        cells.append(f"{step.moved_bytes[form] / 1e9:.3f}, {statistics.median(rates):.1f}, {share:.0%}")
    return cells


def peer_section(peer: Peer) -> Iterator[str]:
    yield f"## Decode of one request beside {peer.peer}"
    yield conditions(peer.conditions)
    theirs = peer.seconds[peer.peer]
    rows = [
        [
            f"Firelane, --weights {name}" if name != peer.peer else name,
            f"{peer.output_tokens / min(seconds):.1f}",
            f"{median_ratio(theirs, seconds):.2f}x",
            f"{best_ratio(theirs, seconds):.2f}x",
        ]
        for name, seconds in peer.seconds.items()
    ]
    yield format_table(["engine", "tok/s, best", "to the peer, median", "best"], rows)


def starts_section(starts: Starts) -> Iterator[str]:
    yield "## Cold start"
    yield conditions(starts.conditions)
    limit = statistics.median(starts.drive_gbps)
    rows = [
        start_row(case, name, starts, by_variant, limit)
        for case, by_variant in starts.seconds.items()
        for name in by_variant
    ]
    header = [
        "start",
        "first token, s (median)",
        "best",
        "to the bf16 directory",
        "GB to read",
        "at the drive's speed, s",
    ]
    yield format_table(header, rows)
    yield (
        f"From the start of `firelane generate` to the first byte printed; page cache dropped before each: "
        f"{starts.dropped}. The drive reads {limit:.2f} GB/s (direct reads, median of rounds). "
        f'"{FIRST}": empty weight cache, kernels compiled and the choice of forms cached, as a fleet ships '
        f'those; the weights are read, packed and cached. "{LATER}": from the cached form.'
    )


def start_row(
    case: str, name: str, starts: Starts, by_variant: Mapping[str, Sequence[float]], limit: float
) -> list[str]:
    seconds, nbytes = by_variant[name], starts.read_bytes[case][name]
    share = median_ratio(seconds, by_variant[PLAIN_VARIANT])
    figures = [f"{statistics.median(seconds):.2f}", f"{min(seconds):.2f}", f"{share:.2f}"]
    return [f"{case}, {name}", *figures, f"{nbytes / 1e9:.3f}", f"{nbytes / limit / 1e9:.2f}"]


def published_section() -> Iterator[str]:
    yield "## Beside published figures"
    header = ["form", "bits a weight at rest", "in memory", "speed against bf16"]
    rows = [[p.name, bits(p.bits_at_rest), bits(p.bits_in_memory), p.speed] for p in PUBLISHED]
    yield format_table(header, rows)
    yield (
        "Theirs, on their machines and models; bits are 16 times the share of bf16's size that they state. "
        "Methods and sources:"
    )
    yield "\n".join(f"- {p.name}: {p.method}. {p.source}." for p in PUBLISHED)


def bits(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
