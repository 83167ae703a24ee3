"""Measure: offline speed, a server under load, kernels, the host's own cost."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firelane.cli import bench_serve
from firelane.server.options import shared as options

if TYPE_CHECKING:
    from firelane.env import Environment

ENGINE = ("threads", "weights", "kv_cache_dtype", "activation_dtype")
"""Fields of EngineConfig that benchmarks of this machine take."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(title="benchmarks", metavar="BENCHMARK", required=True)
    _add_offline(kinds.add_parser("offline", help="speed of the engine alone, against the machine's limits"))
    bench_serve.add_arguments(
        kinds.add_parser("serve", help="throughput and latency of any OpenAI-compatible server")
    )
    _add_kernels(kinds.add_parser("kernels", help="speed of each op by number of rows"))
    _add_router(kinds.add_parser("router", help="routing policies of several engines, simulated"))
    _add_disagg(kinds.add_parser("disagg", help="prefill and decode apart on a described device, simulated"))
    _add_host(kinds.add_parser("host", help="CPU time of gateway and engine per token, on the null backend"))


def run(arguments: argparse.Namespace, environment: Environment) -> int:
    return arguments.run_benchmark(arguments, environment)


def _add_offline(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser)
    parser.add_argument(
        "--workload", action="append", metavar="NAME", help="one of the table's rows; may be repeated"
    )
    options.add_engine(parser, *ENGINE)
    parser.add_argument("--repeats", type=options.positive_int, default=3, metavar="N", help="best of N")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    parser.set_defaults(run_benchmark=_run_offline)


def _add_kernels(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser)
    options.add_engine(parser, *ENGINE)
    parser.add_argument("--rows", type=options.positive_int, nargs="+", metavar="N", help="rows of a step")
    parser.add_argument(
        "--isa",
        nargs="+",
        metavar="NAME",
        help="targets (or: all): decode and prefill on each, as shares of its limits",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    parser.set_defaults(run_benchmark=_run_kernels)


def _add_host(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser)
    parser.add_argument("--streams", type=options.positive_int, default=200, metavar="N", help="at a time")
    parser.add_argument(
        "--num-requests", type=options.positive_int, default=1000, metavar="N", help="default: 1000"
    )
    parser.add_argument(
        "--seed", type=options.count, default=0, metavar="N", help="of lengths, prompts and arrivals"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    parser.set_defaults(run_benchmark=_run_host)


def _add_router(parser: argparse.ArgumentParser) -> None:
    for kind, text in (("trace", "requests of this shape"), ("policy", "this policy of --routing")):
        parser.add_argument(
            f"--{kind}", action="append", default=[], metavar="NAME", help=f"{text}; may be repeated"
        )
    parser.add_argument(
        "--engines", type=options.positive_int, default=4, metavar="N", help="default: %(default)s"
    )
    parser.add_argument(
        "--seeds", type=options.positive_int, default=1, metavar="N", help="the median of N runs (default: 1)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    parser.set_defaults(run_benchmark=_run_router)


def _add_disagg(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help=f"{options.MODEL_HELP}, or config.json alone (default: 7 B)"
    )
    parser.add_argument("--device", default="h100", metavar="KIND", help="as of plan (default: %(default)s)")
    parser.add_argument("--load", default="documents", metavar="NAME", help="default: %(default)s")
    parser.add_argument(
        "--rate", action="append", type=options.positive_float, metavar="X", help="a second; may be repeated"
    )
    parser.add_argument(
        "--engines", type=options.positive_int, default=16, metavar="N", help="default: %(default)s"
    )
    parser.add_argument(
        "--prefill", action="append", type=options.positive_int, metavar="N", help="of them; may be repeated"
    )
    parser.add_argument(
        "--chunk",
        action="append",
        type=options.positive_int,
        metavar="N",
        help="tokens of a step of engines that do both; may be repeated (default: the device's)",
    )
    chunk_help = "the same of engines for prefill (default: twice the device's)"
    parser.add_argument("--prefill-chunk", type=options.positive_int, metavar="N", help=chunk_help)
    parser.add_argument(
        "--seconds", type=options.positive_float, default=15.0, metavar="X", help="default: %(default)s"
    )
    parser.add_argument(
        "--link-gbps",
        type=options.positive_float,
        default=25.0,
        metavar="X",
        help="10^9 bytes of pages a second from engine to engine (default: %(default)s)",
    )
    parser.add_argument(
        "--seeds", type=options.positive_int, default=1, metavar="N", help="the median of N runs (default: 1)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    parser.set_defaults(run_benchmark=_run_disagg)


def _run_offline(arguments: argparse.Namespace, environment: Environment) -> int:
    from firelane.bench.offline import OfflineRun, format_figures, run_offline
    from firelane.bench.table import write_json
    from firelane.server.progress import ProgressDisplay
    from firelane.sources.resolve import resolve

    display = ProgressDisplay()
    run = OfflineRun(
        names=arguments.workload, repeats=arguments.repeats, **options.engine_settings(arguments)
    )
    figures = run_offline(resolve(arguments.model, progress=display), environment, run, display)
    display.close()
    print(format_figures(figures))
    if arguments.json is not None:
        write_json(arguments.json, figures)
    return 0


def _run_kernels(arguments: argparse.Namespace, environment: Environment) -> int:
    from firelane.bench import kernels, targets
    from firelane.bench.table import write_json
    from firelane.server.progress import ProgressDisplay
    from firelane.sources.resolve import resolve

    display = ProgressDisplay()
    model = resolve(arguments.model, progress=display)
    common: dict[str, Any] = {**options.engine_settings(arguments), "progress": display}
    if arguments.isa:
        figures = targets.run_targets(model, environment, isas=arguments.isa, **common)
        table = targets.format_targets(figures)
    else:
        figures = kernels.run_kernels(model, environment, rows=arguments.rows or kernels.ROWS, **common)
        table = kernels.format_kernels(figures)
    display.close()
    print(table)
    if arguments.json is not None:
        write_json(arguments.json, figures)
    return 0


def _run_host(arguments: argparse.Namespace, environment: Environment) -> int:
    del environment
    from firelane.bench.host import HostLoad, run_host

    load = HostLoad(streams=arguments.streams, num_requests=arguments.num_requests, seed=arguments.seed)
    return run_host(arguments.model, load, json_file=arguments.json)


def _run_router(arguments: argparse.Namespace, environment: Environment) -> int:
    del environment
    from firelane.bench.simulation.router import format_router, run_router
    from firelane.bench.table import write_json

    figures = run_router(arguments.trace, arguments.policy, engines=arguments.engines, seeds=arguments.seeds)
    print(format_router(figures))
    if arguments.json is not None:
        write_json(arguments.json, figures)
    return 0


def _run_disagg(arguments: argparse.Namespace, environment: Environment) -> int:
    from firelane.bench.simulation.disagg import DisaggLoad, DisaggSetup, format_disagg, run_disagg
    from firelane.bench.simulation.disagg_model import DisaggMachine
    from firelane.bench.table import write_json

    machine = DisaggMachine.find(
        arguments.device, arguments.model, environment.cache_dir, arguments.link_gbps
    )
    engines = arguments.engines
    both = [DisaggSetup(engines=engines, chunk_tokens=chunk) for chunk in arguments.chunk or [None]]
    parts = arguments.prefill or [max(1, engines * 3 // 4)]
    chunk = arguments.prefill_chunk or machine.doubled_chunk
    apart = [DisaggSetup(engines=engines, prefill=prefill, chunk_tokens=chunk) for prefill in parts]
    loads = [
        DisaggLoad(name=arguments.load, rate=rate, seconds=arguments.seconds)
        for rate in arguments.rate or [4.0 * engines]
    ]
    figures = run_disagg(machine, [*both, *apart], loads, arguments.seeds)
    print(format_disagg(figures))
    if arguments.json is not None:
        write_json(arguments.json, figures)
    return 0
