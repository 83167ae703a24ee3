"""Say what a model takes of devices, and how fast it would run there, from its config alone."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from firelane.server.options.shared import MODEL_HELP, positive_float, positive_int

if TYPE_CHECKING:
    from firelane.env import Environment
    from firelane.plan.estimate import Estimate, PlanSetup, PlanWorkload

WEIGHTS = ("auto", "bf16", "lossless12", "int8", "fp8", "int4", "mxfp4")
KV_DTYPES = ("auto", "bf16", "int8", "fp8")
BEST_FOR = ("throughput", "latency", "context")


def sizes(text: str) -> list[int]:
    """Positive integers with commas between."""
    return [positive_int(part) for part in text.split(",")]


def names(*known: str) -> Callable[[str], list[str]]:
    """A type of options: of these names, several with commas between."""

    def parse(text: str) -> list[str]:
        for part in text.split(","):
            if part not in known:
                raise argparse.ArgumentTypeError(f"{part!r} is none of {', '.join(known)}")
        return text.split(",")

    return parse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", metavar="MODEL", help=f"{MODEL_HELP}; or config.json alone")
    parser.add_argument(
        "--device",
        default="cpu",
        metavar="KIND[:N]",
        help="h100:8, h200:2, rtx4090, ...; cpu (default): this machine, as `firelane doctor --save` has "
        "measured it",
    )
    _add_load(parser)
    _add_layouts(parser)
    parser.add_argument(
        "--best-for", choices=BEST_FOR, help="choose a layout, and print the command that serves it"
    )
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    parser.add_argument("--plot", metavar="FILE", help="write memory and speed of the layouts as SVG")


def _add_load(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is served; several values with commas between are compared")
    group.add_argument(
        "--batch", type=sizes, default=[1], metavar="N", help="sequences at a time (default: 1)"
    )
    group.add_argument(
        "--context", type=sizes, default=[1024], metavar="N", help="their length in tokens (default: 1024)"
    )
    group.add_argument(
        "--output",
        type=sizes,
        default=[0],
        metavar="N",
        help="tokens of an answer: then --context is of prompts, and the requests a second of a server that "
        "always has --batch of them are told, too",
    )
    group.add_argument(
        "--weights",
        type=names(*WEIGHTS),
        default=["auto"],
        metavar="FORM",
        help=f"in memory, of {', '.join(WEIGHTS)} (default: the checkpoint's own, lossless12 of bf16)",
    )
    group.add_argument(
        "--kv-cache-dtype",
        type=names(*KV_DTYPES),
        default=["auto"],
        metavar="DTYPE",
        help=f"of {', '.join(KV_DTYPES)} (default: the model's)",
    )


def _add_layouts(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("layout and limits; all layouts of the devices unless they are given")
    for name, what in (("tp", "ranks that share each product"), ("pp", "stages of layers")):
        group.add_argument(f"--{name}", type=sizes, metavar="N", help=what)
    group.add_argument("--dp", type=sizes, metavar="N", help="groups that share the sequences")
    group.add_argument("--ep", type=sizes, metavar="N", help="ranks that share the experts: tp, or tp x dp")
    group.add_argument("--max-num-seqs", type=positive_int, metavar="N", help="as of serve")
    group.add_argument("--max-num-batched-tokens", type=positive_int, metavar="N", help="as of serve")
    group.add_argument("--max-model-len", type=positive_int, metavar="N", help="as of serve")
    group.add_argument(
        "--reserve-gib", type=positive_float, default=0.0, metavar="X", help="of each device, for others"
    )
    group.add_argument(
        "--drive-gbps",
        type=positive_float,
        default=3.0,
        metavar="X",
        help="10^9 bytes a second that weights are read at (default: 3)",
    )


def run(arguments: argparse.Namespace, environment: Environment) -> int:
    from firelane.plan.report import as_json, fit_or_explain
    from firelane.plan.table import format_estimates, serve_command, title

    setups, count, estimates = _estimates(arguments, environment)
    fit_or_explain(setups, estimates, count)
    if arguments.plot:
        _plot(arguments.plot, setups[0], estimates)
    on_gpu, command, refused = setups[0].device.kernels.on_gpu, "", ""
    if arguments.best_for:
        best, refused = chosen(estimates, arguments.best_for, on_gpu=on_gpu)
        estimates, command = [best], serve_command(arguments.model or "", best, on_gpu=on_gpu)
    if arguments.json:
        print(as_json(setups[0], count, estimates, command, refused))
        return 0
    print(title(setups[0], count, estimates))
    print(format_estimates(estimates))
    if command:
        print(command)
    if refused:
        print(f"# not served yet: {refused}")
    return 0


def _estimates(
    arguments: argparse.Namespace, environment: Environment
) -> tuple[list[PlanSetup], int, list[Estimate]]:
    from firelane.models.registry import load_program, warn_of_unknown_keys
    from firelane.plan.devices import find_devices
    from firelane.plan.estimate import PlanSetup, estimate_all
    from firelane.plan.forms import choose_form
    from firelane.plan.layout import layouts
    from firelane.plan.model import PlannedModel
    from firelane.plan.source import read_model
    from firelane.program.cache_rewrite import with_cache_dtype

    directory, config = read_model(arguments.model)
    device, count = find_devices(arguments.device, environment.cache_dir)
    program = load_program(config, max_model_len=arguments.max_model_len)
    warn_of_unknown_keys(program, directory.name)
    _check_lengths(arguments, program.max_model_len)
    setups = [
        PlanSetup(
            model=PlannedModel(
                program=with_cache_dtype(program, kv_dtype),
                form=choose_form(program, form, directory, config),
                kv_dtype=kv_dtype,
            ),
            device=device,
            max_num_seqs=arguments.max_num_seqs,
            step_tokens=arguments.max_num_batched_tokens,
            max_model_len=arguments.max_model_len,
            kept_back=int(arguments.reserve_gib * (1 << 30)),
        )
        for form in arguments.weights
        for kv_dtype in arguments.kv_cache_dtype
    ]
    fixed = {name: getattr(arguments, name) for name in ("tp", "pp", "dp", "ep")}
    wanted = layouts(program, count, **fixed)
    return setups, count, [e for s in setups for e in estimate_all(s, wanted, _workloads(arguments))]


def _check_lengths(arguments: argparse.Namespace, most: int) -> None:
    """Raises UsageError for sequences that the model does not take."""
    from firelane.errors import UsageError

    lengths = {
        "--max-model-len": arguments.max_model_len or 0,
        "--context": max(arguments.context) + max(arguments.output),
    }
    for option, tokens in lengths.items():
        if tokens > most:
            raise UsageError(f"{option} {tokens}: the model takes {most} tokens; lower it")


def _workloads(arguments: argparse.Namespace) -> list[PlanWorkload]:
    from firelane.plan.estimate import PlanWorkload

    return [
        PlanWorkload(batch=batch, context=context, output=output, drive_gbps=arguments.drive_gbps)
        for batch in arguments.batch
        for context in arguments.context
        for output in arguments.output
    ]


def _plot(path: str | Path, setup: PlanSetup, estimates: list[Estimate]) -> None:
    from firelane.plan.plot import draw
    from firelane.storage import write_whole

    write_whole(Path(path), draw(setup, estimates).encode())


def chosen(estimates: Sequence[Estimate], wanted: str, *, on_gpu: bool) -> tuple[Estimate, str]:
    """The best of those that are served, else of all, and then what `firelane serve` says to it. One has to
    fit."""
    from firelane.plan.estimate import best
    from firelane.plan.table import serve_options

    fitting = [e for e in estimates if not e.problem]
    refused = {id(e): refusal(" ".join(serve_options(e, on_gpu=on_gpu))) for e in fitting}
    found = best([e for e in fitting if not refused[id(e)]] or fitting, wanted)
    return found, refused[id(found)]


@cache
def refusal(options: str) -> str:
    """Refusal of options by serve, before it looks at a model; "" where it takes them."""
    from firelane import backends
    from firelane.cli import build_parser
    from firelane.engine_config import EngineConfig
    from firelane.errors import UsageError
    from firelane.options import fields

    arguments, unknown = build_parser("serve").parse_known_args(["serve", "MODEL", *options.split()])
    if unknown:
        return f"it has no option {unknown[0]}"
    values = vars(arguments)
    try:
        config = EngineConfig(
            model_dir=Path(),
            cache_dir=Path(),
            replicas=values.get("replicas", 1),
            **fields(EngineConfig, values),
        )
        backends.check(config.backend, config)
    except UsageError as error:
        return f"{error}"
    return ""
