"""Quantise a model: a checkpoint of 8- or 4-bit weights, which vLLM and others read, too.

OUT is a directory in Hugging Face layout, in the format of compressed-tensors. Matrices of products become
codes; embeddings, routers, norms and biases stay. A run that was interrupted goes on when the command is
given again.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firelane.server.options import shared as options

if TYPE_CHECKING:
    from firelane.bench.divergence import Divergence
    from firelane.env import Environment
    from firelane.weights.quantize.report import QuantizeReport

FORMATS = ("int8", "int4-g32", "int4-g128", "fp8", "fp8-block", "mxfp4")
WORST = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="directory in Hugging Face layout, or hub id")
    parser.add_argument("out", type=Path, metavar="OUT", help="new directory")
    parser.add_argument("--format", choices=FORMATS, required=True, help="of the codes")
    parser.add_argument(
        "--keep",
        nargs="+",
        action="extend",
        default=[],
        metavar="PATTERN",
        help="modules that stay as they are: lm_head, 'layers.0.*', '*.down_proj'",
    )
    parser.add_argument("--report", action="store_true", help="print each matrix, not the worst alone")
    parser.add_argument(
        "--evaluate",
        type=Path,
        metavar="FILE",
        help="a text: print how far probabilities of its tokens are from those of the model in bf16",
    )
    parser.add_argument(
        "--evaluate-tokens",
        type=options.positive_int,
        default=1024,
        metavar="N",
        help="of that text (default: %(default)s)",
    )
    options.add_engine(parser, "threads", "activation_dtype")


def run(arguments: argparse.Namespace, environment: Environment) -> int:
    from firelane.models.config.reader import read_config
    from firelane.models.registry import load_program, warn_of_unknown_keys
    from firelane.program.values import DType
    from firelane.server.progress import ProgressDisplay
    from firelane.sources.resolve import resolve
    from firelane.weights.quantize.run import quantize
    from firelane.weights.quantizing.schemes import SCHEMES

    display = ProgressDisplay()
    model_dir = resolve(arguments.model, progress=display, whole=True)
    text = None if arguments.evaluate is None else _text(arguments.evaluate)
    program = load_program(read_config(model_dir), dtype=DType.BF16)
    warn_of_unknown_keys(program, model_dir.name)
    report = quantize(
        program,
        model_dir,
        arguments.out,
        SCHEMES[arguments.format],
        keep=arguments.keep,
        threads=options.threads(arguments),
        progress=display,
    )
    display.close()
    print(format_report(report, worst=None if arguments.report else WORST))
    if text is not None:
        print(_evaluated(model_dir, text, arguments, environment))
    return 0


def format_report(report: QuantizeReport, *, worst: int | None) -> str:
    """A table of all matrices, or of those that lost most, and the sums."""
    from firelane.bench.table import format_table

    matrices = report.matrices
    shown = sorted(matrices, key=lambda m: -m.relative_error)[:worst] if worst else matrices
    header = ("matrix", "shape", "bits", "relative error", "largest error")
    rows = [
        [
            matrix.name,
            "x".join(map(str, matrix.shape)),
            f"{matrix.bits:.2f}",
            f"{matrix.relative_error:.3%}",
            f"{matrix.largest_error:.3%}",
        ]
        for matrix in shown
    ]
    return "\n".join([format_table(header, rows), "", *_sums(report)])


def _sums(report: QuantizeReport) -> Iterator[str]:
    total = f"relative error {report.relative_error:.3%} in all"
    yield f"{len(report.matrices)} matrices as {report.format}, {total}"
    for why, count in Counter(kept.why for kept in report.kept if kept.why).items():
        yield f"kept: {count} matrices, {why}"
    before, after = report.original_bytes, report.nbytes
    yield f"{before / 1e9:.3f} GB -> {after / 1e9:.3f} GB: {after / max(before, 1):.1%} of the original"


def format_divergence(found: Divergence) -> str:
    first, second = found.perplexities
    return (
        f"{found.tokens} tokens: KL divergence from bf16 {found.mean_kl:.5f} nats a token (largest "
        f"{found.largest_kl:.3f}), most likely token the same at {found.top1:.2%}, perplexity {first:.3f} -> "
        f"{second:.3f}"
    )


def _text(path: Path) -> str:
    from firelane.errors import UsageError

    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--evaluate {path}: cannot be read as text: {error}") from error


def _evaluated(model_dir: Path, text: str, arguments: argparse.Namespace, environment: Environment) -> str:
    from firelane.bench.divergence import divergence
    from firelane.engine_config import EngineConfig

    common: dict[str, Any] = {"max_num_seqs": 1, "kv_cache_bytes": 1 << 30, "prefix_cache": False}
    common |= {"cache_dir": environment.cache_dir, "backend": "cpu"}
    given = options.engine_settings(arguments)
    original = EngineConfig(model_dir=model_dir, dtype="bf16", threads=given.get("threads"), **common)
    made = EngineConfig(model_dir=arguments.out, **given, **common)
    return format_divergence(divergence(original, made, text, most_tokens=arguments.evaluate_tokens))
