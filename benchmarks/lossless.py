"""All figures of lossless weights: size at rest and in memory, speed in the step, a peer, cold starts.

    python benchmarks/lossless.py [MODEL] [--peers-script PATH] [--out DIR]
        [--parts at-rest steps peer starts]

Prints the page that it writes to DIR/lossless.md, and draws DIR/lossless.svg (where matplotlib is installed:
pip install '.[plot]'). Figures are kept in DIR/lossless.json: a part that is not run keeps its last ones, and
--parts without names only writes the page again. The peer is left out without --peers-script (see
turns_vs_peers.py). For figures that can be relied on, start it at real-time priority (chrt -f 10 python ...)
on a machine that does nothing else; the page says under which priority it ran.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from lossless_at_rest import measure_at_rest
from lossless_figures import AUTO, BF16, LOSSLESS, Figures, load_figures, save_figures
from lossless_peer import measure_peer
from lossless_plot import save_plot
from lossless_report import PACKED_VARIANT, PAGE_MARKS, PLAIN_VARIANT, fill_page, render
from lossless_starts import Variant, measure_starts
from lossless_steps import Plan, measure_steps

from firelane.errors import FirelaneError
from firelane.sources.resolve import EMBEDDED, resolve
from firelane.weights.lossless.pack import pack

PARTS = ("at-rest", "steps", "peer", "starts")
ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
RESULTS = Path(__file__).with_name("results")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default=str(EMBEDDED), help="plain bf16 directory")
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=PARTS)
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="DIR")
    parser.add_argument(
        "--scratch", type=Path, metavar="DIR", help="on the model's drive (default: beside the model)"
    )
    parser.add_argument("--page", type=Path, metavar="FILE", help="fill in its table and plot, too")
    parser.add_argument("--repeats", type=int, default=3, help="of the codec; the best counts")
    steps = parser.add_argument_group("steps")
    steps.add_argument("--forms", nargs="+", default=[LOSSLESS, AUTO], help="beside bf16")
    steps.add_argument("--rows", type=int, nargs="*", default=ROWS)
    steps.add_argument("--prefill", type=int, default=512)
    steps.add_argument("--rounds", type=int, default=5)
    steps.add_argument("--threads", type=int)
    peer = parser.add_argument_group("peer")
    peer.add_argument("--peers-script", type=Path, metavar="PATH")
    peer.add_argument("--peer", default="llamacpp")
    peer.add_argument("--peer-rounds", type=int, default=5)
    starts = parser.add_argument_group("starts")
    starts.add_argument("--start-rounds", type=int, default=3)
    starts.add_argument("--start-form", default=LOSSLESS, help="--weights of the lossless starts")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    model_dir = resolve(arguments.model).resolve()
    kept = arguments.out / "lossless.json"
    arguments.out.mkdir(parents=True, exist_ok=True)
    figures = load_figures(kept, model_dir.name)
    if arguments.page is not None:
        write_into_page(figures, arguments)  # what is wrong with it is better known before the work
    scratch = Path(tempfile.mkdtemp(prefix="lossless-", dir=arguments.scratch or model_dir.parent))
    try:
        for part in arguments.parts:
            print(f"{part} ...", file=sys.stderr, flush=True)
            figures = RUN[part](figures, model_dir, scratch, arguments)
            save_figures(kept, figures)
    except FirelaneError as error:
        raise SystemExit(str(error)) from error
    finally:
        shutil.rmtree(scratch)
    write_pages(figures, arguments)


def write_pages(figures: Figures, arguments: argparse.Namespace) -> None:
    out: Path = arguments.out
    page = render(figures)
    print(page)
    (out / "lossless.md").write_text(page)
    try:
        save_plot(figures, out / "lossless.svg")
    except ImportError:
        print("no plot: pip install '.[plot]'", file=sys.stderr)
    if arguments.page is not None:
        write_into_page(figures, arguments)


def write_into_page(figures: Figures, arguments: argparse.Namespace) -> None:
    page: Path = arguments.page
    folder = os.path.relpath(arguments.out.resolve(), page.resolve().parent)
    try:
        text = fill_page(page.read_text(), figures, folder)
    except (OSError, ValueError) as error:
        raise SystemExit(f"--page {page}: {error}; it needs {PAGE_MARKS}") from error
    page.write_text(text)


def run_at_rest(figures: Figures, model_dir: Path, scratch: Path, arguments: argparse.Namespace) -> Figures:
    found = measure_at_rest(model_dir, scratch / "packed", repeats=arguments.repeats)
    return figures.with_part(at_rest=found)


def run_steps(figures: Figures, model_dir: Path, scratch: Path, arguments: argparse.Namespace) -> Figures:
    del scratch
    plan = Plan(
        rows=arguments.rows,
        prefill=arguments.prefill,
        rounds=arguments.rounds,
        threads=arguments.threads,
    )
    return figures.with_part(steps=measure_steps(model_dir, [BF16, *arguments.forms], plan))


def run_peer(figures: Figures, model_dir: Path, scratch: Path, arguments: argparse.Namespace) -> Figures:
    del scratch
    if arguments.peers_script is None:
        return figures
    found = measure_peer(
        model_dir,
        arguments.peers_script,
        peer=arguments.peer,
        forms=[BF16, LOSSLESS, AUTO],
        rounds=arguments.peer_rounds,
    )
    return figures.with_part(peer=found)


def run_starts(figures: Figures, model_dir: Path, scratch: Path, arguments: argparse.Namespace) -> Figures:
    packed = scratch / "packed"
    if not packed.exists():
        pack(model_dir, packed, threads=arguments.threads or 2)
    form = arguments.start_form
    variants = [
        Variant(PLAIN_VARIANT, model_dir, BF16),
        Variant(f"{PLAIN_VARIANT}, --weights {form}", model_dir, form),
        Variant(PACKED_VARIANT, packed, form),
    ]
    return figures.with_part(starts=measure_starts(variants, scratch, rounds=arguments.start_rounds))


RUN: dict[str, Callable[[Figures, Path, Path, argparse.Namespace], Figures]] = {
    "at-rest": run_at_rest,
    "steps": run_steps,
    "peer": run_peer,
    "starts": run_starts,
}

if __name__ == "__main__":
    main()
