"""Throughput and latency of any OpenAI-compatible server, with the options of `vllm bench serve`."""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firelane.errors import UsageError
from firelane.server.options import shared as options

if TYPE_CHECKING:
    from firelane.bench.arrivals import Traffic
    from firelane.bench.client import LoadClient
    from firelane.bench.serve import OnDone
    from firelane.bench.tokens import Tokens
    from firelane.bench.workload import BenchRequest
    from firelane.env import Environment

LOGNORMAL, RANDOM, SHAREGPT = "lognormal", "random", "sharegpt"
ENDPOINTS = {
    "openai": "/v1/completions",
    "vllm": "/v1/completions",
    "openai-chat": "/v1/chat/completions",
}
"""The endpoint of each --backend, by vLLM's names."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--base-url", "--url", dest="url", default="http://127.0.0.1:8000", help="default: %(default)s"
    )
    parser.add_argument(
        "--backend", choices=ENDPOINTS, default="openai", help="openai-chat: sends chats (default: openai)"
    )
    parser.add_argument("--endpoint", metavar="PATH", help="default: /v1/completions; of chats: /v1/chat/...")
    parser.add_argument("--model", help="name to ask for (default: the server's first)")
    parser.add_argument("--api-key", default="", help="sent as bearer token")
    parser.add_argument(
        "--seed", type=options.count, default=0, metavar="N", help="of lengths, prompts and arrivals"
    )
    _add_data(parser.add_argument_group("data set"))
    _add_traffic(parser.add_argument_group("traffic"))
    _add_sampling(parser.add_argument_group("sampling"))
    _add_results(parser.add_argument_group("results"))
    parser.set_defaults(run_benchmark=_run)


def _add_data(group: Any) -> None:
    group.add_argument(
        "--dataset-name",
        choices=(LOGNORMAL, RANDOM, SHAREGPT),
        default=LOGNORMAL,
        help="lengths in the manner of ShareGPT's; random tokens; a file of conversations "
        "(default: %(default)s)",
    )
    group.add_argument("--dataset-path", type=Path, metavar="FILE", help="of sharegpt: its JSON")
    group.add_argument(
        "--num-prompts", type=options.positive_int, default=200, metavar="N", help="default: 200"
    )
    group.add_argument("--random-input-len", type=options.count, default=1024, metavar="N", help="tokens")
    group.add_argument(
        "--random-output-len", type=options.positive_int, default=128, metavar="N", help="tokens"
    )
    group.add_argument(
        "--random-range-ratio",
        type=options.real(0, 1),
        default=0.0,
        metavar="R",
        help="lengths vary by 1 ± R",
    )
    group.add_argument(
        "--random-prefix-len", type=options.count, default=0, metavar="N", help="tokens that prompts share"
    )
    group.add_argument(
        "--sharegpt-output-len", type=options.positive_int, metavar="N", help="default: as in the file"
    )
    group.add_argument(
        "--tokenizer",
        type=Path,
        metavar="PATH",
        help="to count ShareGPT's tokens, and to write chats of random ones (default: ask the server)",
    )
    group.add_argument(
        "--vocab-size", type=options.positive_int, default=1000, metavar="N", help="prompt ids are below N"
    )
    group.add_argument(
        "--longest", type=options.positive_int, default=1024, metavar="N", help="lognormal: most tokens"
    )


def _add_traffic(group: Any) -> None:
    group.add_argument(
        "--max-concurrency", type=options.positive_int, metavar="N", help="at most N requests at a time"
    )
    group.add_argument(
        "--request-rate",
        type=_rate,
        default=math.inf,
        metavar="X",
        help="requests/s (default: inf, all at once)",
    )
    group.add_argument(
        "--burstiness",
        type=options.positive_float,
        default=1.0,
        metavar="X",
        help="shape of the gamma distribution of the time between two: 1 is Poisson, less is bursts",
    )
    group.add_argument(
        "--ramp-up-strategy", choices=("linear", "exponential"), help="the rate goes up during the load"
    )
    group.add_argument("--ramp-up-start-rps", type=options.positive_float, metavar="X", help="requests/s")
    group.add_argument("--ramp-up-end-rps", type=options.positive_float, metavar="X", help="requests/s")
    group.add_argument(
        "--num-warmups", type=options.count, default=0, metavar="N", help="requests that are not counted"
    )


def _add_sampling(group: Any) -> None:
    group.add_argument("--temperature", type=options.real(0, 2), default=0.0, metavar="X", help="default: 0")
    group.add_argument(
        "--ignore-eos", action="store_true", help="answers of full length (always, but for sharegpt)"
    )
    group.add_argument("--extra-body", type=json.loads, default={}, metavar="JSON", help="further fields")


def _add_results(group: Any) -> None:
    group.add_argument(
        "--goodput",
        nargs="+",
        default=[],
        metavar="NAME:MS",
        help="count requests within these: ttft, tpot, e2el (such as ttft:500 tpot:50)",
    )
    group.add_argument(
        "--metric-percentiles", default="50,90,99", metavar="LIST", help="of latencies (default: %(default)s)"
    )
    group.add_argument("--save-detailed", action="store_true", help="each request's figures in the JSON, too")
    group.add_argument(
        "--metadata", nargs="+", default=[], metavar="KEY=VALUE", help="further entries of the JSON"
    )
    group.add_argument("--save-plot", type=Path, metavar="FILE", help="needs matplotlib")
    group.add_argument("--result-filename", "--json", dest="json", type=Path, metavar="FILE", help="as JSON")


def _rate(text: str) -> float:
    return math.inf if text == "inf" else options.positive_float(text)


def _run(arguments: argparse.Namespace, environment: Environment) -> int:
    del environment
    from firelane.bench import summary as results
    from firelane.bench.client import LoadClient, first_model
    from firelane.bench.plot import require_matplotlib, save_plot
    from firelane.bench.table import write_json

    if arguments.save_plot is not None:
        require_matplotlib()
    objectives = results.Objectives.read(arguments.goodput)
    percents, metadata = _percents(arguments.metric_percentiles), _metadata(arguments.metadata)
    traffic, endpoint = _traffic(arguments), _endpoint(arguments)
    model = arguments.model or first_model(arguments.url, api_key=arguments.api_key)
    client = LoadClient(
        arguments.url, model, api_key=arguments.api_key, extra=_extra(arguments), endpoint=endpoint
    )
    requests = _requests(arguments, model)
    outcomes, seconds = _drive(client, requests, traffic, arguments)
    summary = results.summarise(outcomes, seconds, objectives, percents)
    print(results.format_summary(summary, objectives))
    if arguments.json is not None:
        figures = results.result_json(summary, detailed=arguments.save_detailed)
        write_json(arguments.json, _conditions(arguments, model) | metadata | figures)
    if arguments.save_plot is not None:
        save_plot(outcomes, arguments.save_plot)
    return 0


def _drive(
    client: LoadClient, requests: list[BenchRequest], traffic: Traffic, arguments: argparse.Namespace
) -> tuple[list[Any], float]:
    """Warm up, then the load, with a line that moves."""
    from firelane.bench.serve import ServeLoad, run_load
    from firelane.server.progress import ProgressDisplay

    display = ProgressDisplay()
    most, warm_ups = arguments.max_concurrency, arguments.num_warmups

    def shown(stage: str, total: int) -> OnDone:
        def on_done(done: int) -> None:
            display(stage, done, total, "requests")

        on_done(0)
        return on_done

    try:
        if warm_ups:
            run_load(client, requests[:1] * warm_ups, ServeLoad(concurrency=most), shown("warm-up", warm_ups))
        arrivals_s = traffic.arrivals_s(len(requests), seed=arguments.seed)
        load = ServeLoad(concurrency=most, arrivals_s=arrivals_s)
        return run_load(client, requests, load, shown("load", len(requests)))
    finally:
        display.close()


def _requests(arguments: argparse.Namespace, model: str) -> list[BenchRequest]:
    from firelane.bench.tokens import LocalTokens, ServerTokens, as_text

    if (arguments.dataset_path is None) == (arguments.dataset_name == SHAREGPT):
        raise UsageError("--dataset-path names the file of --dataset-name sharegpt: give both, or neither")
    if arguments.tokenizer is not None:
        tokens = LocalTokens(arguments.tokenizer)
    else:
        tokens = ServerTokens(arguments.url, model, api_key=arguments.api_key)
    requests = _drawn(arguments, tokens)
    return as_text(requests, tokens) if arguments.backend == "openai-chat" else requests


def _drawn(arguments: argparse.Namespace, tokens: Tokens) -> list[BenchRequest]:
    from firelane.bench import datasets
    from firelane.bench.workload import sharegpt_like, token_requests

    count, seed, vocab_size = arguments.num_prompts, arguments.seed, arguments.vocab_size
    if arguments.dataset_name == RANDOM:
        lengths = datasets.RandomLengths(
            input_len=arguments.random_input_len,
            output_len=arguments.random_output_len,
            range_ratio=arguments.random_range_ratio,
            prefix_len=arguments.random_prefix_len,
        )
        return datasets.random_requests(count, lengths, seed=seed, vocab_size=vocab_size)
    if arguments.dataset_name == LOGNORMAL:
        lengths = sharegpt_like(count, seed=seed, longest=arguments.longest)
        return token_requests(lengths, seed=seed, vocab_size=vocab_size)
    output_len = arguments.sharegpt_output_len
    return datasets.sharegpt_requests(
        arguments.dataset_path, count, seed=seed, count_tokens=tokens.count, output_len=output_len
    )


def _endpoint(arguments: argparse.Namespace) -> str:
    """Raises UsageError for one that --backend does not speak."""
    usual = ENDPOINTS[arguments.backend]
    endpoint = arguments.endpoint or usual
    is_chat = endpoint.endswith("/chat/completions")
    if not endpoint.startswith("/") or is_chat != (arguments.backend == "openai-chat"):
        raise UsageError(f"--endpoint {endpoint}: --backend {arguments.backend} asks a path such as {usual}")
    return endpoint


def _traffic(arguments: argparse.Namespace) -> Traffic:
    from firelane.bench.arrivals import Ramp, Traffic

    start, end = arguments.ramp_up_start_rps, arguments.ramp_up_end_rps
    if arguments.ramp_up_strategy is None:
        if start is not None or end is not None:
            raise UsageError("--ramp-up-start-rps and --ramp-up-end-rps need --ramp-up-strategy")
        return Traffic(request_rate=arguments.request_rate, burstiness=arguments.burstiness)
    if start is None or end is None or not math.isinf(arguments.request_rate):
        raise UsageError(
            "--ramp-up-strategy needs --ramp-up-start-rps and --ramp-up-end-rps, and no --request-rate"
        )
    ramp = Ramp(strategy=arguments.ramp_up_strategy, start_rps=start, end_rps=end)
    return Traffic(burstiness=arguments.burstiness, ramp=ramp)


def _extra(arguments: argparse.Namespace) -> dict[str, Any]:
    if not isinstance(arguments.extra_body, dict):
        raise UsageError("--extra-body is no JSON object")
    fields: dict[str, Any] = {"temperature": arguments.temperature}
    if arguments.ignore_eos or arguments.dataset_name != SHAREGPT:
        fields["ignore_eos"] = True
    return {**fields, **arguments.extra_body}


def _percents(text: str) -> list[float]:
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 <= percent <= 100 for percent in found):
        raise UsageError(f"--metric-percentiles {text}: give numbers of 0 to 100, with commas between")
    return found


def _metadata(pairs: list[str]) -> dict[str, str]:
    wrong = next((pair for pair in pairs if "=" not in pair), None)
    if wrong is not None:
        raise UsageError(f"--metadata {wrong}: give KEY=VALUE")
    return {key: value for key, _, value in (pair.partition("=") for pair in pairs)}


def _conditions(arguments: argparse.Namespace, model: str) -> dict[str, Any]:
    """The entries of vLLM's result files that say what was measured."""
    found: dict[str, Any] = {
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": arguments.backend,
        "backend": arguments.backend,
        "label": None,
        "model_id": model,
        "tokenizer_id": None if arguments.tokenizer is None else str(arguments.tokenizer),
        "dataset_name": arguments.dataset_name,
        "num_prompts": arguments.num_prompts,
        "request_rate": "inf" if math.isinf(arguments.request_rate) else arguments.request_rate,
        "burstiness": arguments.burstiness,
        "max_concurrency": arguments.max_concurrency,
    }
    if arguments.ramp_up_strategy is not None:
        names = ("ramp_up_strategy", "ramp_up_start_rps", "ramp_up_end_rps")
        found |= {name: getattr(arguments, name) for name in names}
    return found
