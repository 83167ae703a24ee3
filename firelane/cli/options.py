"""Option types, and the options that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, TypeVar

GIB = 1 << 30
T = TypeVar("T")
N = TypeVar("N", int, float)
MOST_WHOLE = 2**31 - 1
MOST_REAL = 1e6
"""The most that an option takes which has no limit of its own: seconds of eleven days, a pebibyte in GiB."""

MODEL_HELP = (
    "directory in Hugging Face layout, GGUF file, hub id, or address in an object store (s3://bucket/path) "
    "(default: the model that Firelane carries)"
)


def whole(least: int, most: int = MOST_WHOLE) -> Callable[[str], int]:
    """A reader of whole numbers of this range."""

    def read(text: str) -> int:
        return _within(text, _number(text, int, "a whole number"), least, most)

    return read


def real(least: float, most: float = MOST_REAL) -> Callable[[str], float]:
    """A reader of numbers of this range."""

    def read(text: str) -> float:
        return _within(text, _number(text, float, "a number"), least, most)

    return read


positive_int, count = whole(1), whole(0)
processes = whole(1, 256)
thread_count = whole(1, 4096)


def positive_float(text: str) -> float:
    value = _number(text, float, "a number")
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return _within(text, value, 0, MOST_REAL)


def port(text: str) -> int:
    value = _number(text, int, "a whole number")
    if not 0 <= value <= 65535:
        raise argparse.ArgumentTypeError(f"{text} is not a port (0 to 65535; 0 takes a free one)")
    return value


def _number(text: str, kind: Callable[[str], T], what: str) -> T:
    try:
        return kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}") from None


def _within(text: str, value: N, least: float, most: float) -> N:
    if value > most:
        raise argparse.ArgumentTypeError(f"{text} is more than {most:,.12g}, the most that is taken")
    if not value >= least:
        raise argparse.ArgumentTypeError(f"{text} is not {least:g} or more")
    return value


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", metavar="MODEL", help=MODEL_HELP)


def add_weights(parser: Any) -> None:
    """To a parser or a group of it."""
    parser.add_argument(
        "--weights",
        choices=("auto", "bf16", "lossless", "int8", "int4"),
        default="auto",
        help="bf16 matrices in memory: the fastest form, as they are, or the smallest lossless form; int8, "
        "int4: quantised when they are packed, which changes answers (default: %(default)s)",
    )


def add_dtype(parser: Any) -> None:
    """To a parser or a group of it."""
    parser.add_argument(
        "--dtype",
        choices=("auto", "bf16"),
        default="auto",
        help="auto: as the checkpoint has it, fp16 widened to float32; bf16: rounded, by 0.4%% of a number "
        "at most (default: %(default)s)",
    )


def add_activation_dtype(parser: Any) -> None:
    """To a parser or a group of it."""
    parser.add_argument(
        "--activation-dtype",
        choices=("bf16", "int8"),
        default="bf16",
        help="inputs of products with matrices that are stored as integers: bf16 numbers, or rounded to int8 "
        "with a scale for each 32, faster and slightly other answers; on a CPU (default: %(default)s)",
    )


def add_kv_cache_dtype(parser: Any) -> None:
    """To a parser or a group of it."""
    parser.add_argument(
        "--kv-cache-dtype",
        choices=("auto", "bf16", "int8", "fp8"),
        default="auto",
        help="numbers of the KV cache: those that the model computes with, or int8 or fp8 (e4m3) with a "
        "scale for each token and head, half the memory of bf16 and slightly other answers; on a CPU "
        "(default: %(default)s)",
    )


def add_threads(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=thread_count, metavar="N", help="default: all cores")


def threads(arguments: argparse.Namespace) -> int:
    """The number that the option of `add_threads` gives, or the number of usable cores."""
    from firelane.native.machine import cpu_identity

    return arguments.threads or cpu_identity().usable_cores


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Settings of each command that starts an engine. None means: the engine decides from the model and the
    machine."""
    group = parser.add_argument_group("engine")
    group.add_argument(
        "--threads", type=thread_count, metavar="N", help="compute threads (default: all cores)"
    )
    _add_ranks(group)
    _add_sizes(group)
    add_weights(group)
    add_dtype(group)
    add_activation_dtype(group)
    group.add_argument(
        "--weights-pages",
        choices=("auto", "file", "huge"),
        default="auto",
        help="memory pages of the weights on a CPU: those of the mapped file, copies in huge pages where "
        "these are small, or such copies where one engine has plenty of memory (default: %(default)s)",
    )
    group.add_argument("--no-prefix-cache", action="store_true", help="compute every prompt from its start")
    _add_snapshots(group)
    group.add_argument(
        "--scheduling-policy",
        choices=("fair", "fcfs"),
        default="fair",
        help="whose requests come first: tenants share, or first come, first served (default: %(default)s)",
    )
    _add_backend(group)


def add_isolation(parser: argparse.ArgumentParser) -> None:
    """To a command that runs a model itself, after `add_engine`."""
    parser.add_argument(
        "--no-sandbox",
        action="store_true",
        help="run the model in this process, which keeps all rights of this user; otherwise in a process "
        "without files, network and programs",
    )


def _add_sizes(group: Any) -> None:
    group.add_argument(
        "--max-num-seqs", type=positive_int, metavar="N", help="sequences that run at the same time"
    )
    group.add_argument(
        "--max-num-batched-tokens",
        type=positive_int,
        metavar="N",
        help="tokens that one step may compute (default: 512; 2048 on a GPU)",
    )
    group.add_argument(
        "--max-model-len",
        type=positive_int,
        metavar="N",
        help="longest sequence in tokens (default: the model's)",
    )
    group.add_argument(
        "--kv-cache-gib",
        type=positive_float,
        metavar="X",
        help="memory of the KV cache in GiB (default: what is left)",
    )
    group.add_argument(
        "--kv-cache-memory",
        choices=("private", "shared"),
        default="private",
        help="shared: a file in memory that another process can map; on a CPU (default: %(default)s)",
    )
    add_kv_cache_dtype(group)
    group.add_argument(
        "--block-size",
        type=positive_int,
        metavar="N",
        help="tokens in one KV block (default: 16; 64 on a GPU)",
    )


def _add_ranks(group: Any) -> None:
    group.add_argument(
        "--tensor-parallel-size",
        type=positive_int,
        default=1,
        metavar="N",
        help="processes of an engine that share its heads, MLPs and experts: 1, 2, 4 or 8, each with cores "
        "or a GPU of its own (default: %(default)s)",
    )
    group.add_argument(
        "--expert-parallel-size",
        type=positive_int,
        default=1,
        metavar="N",
        help="the same, of models with experts, but where heads cannot be shared out, or share their keys, "
        "processes divide the tokens of a step, and keep each key once (default: %(default)s)",
    )
    group.add_argument(
        "--pipeline-parallel-size",
        type=positive_int,
        default=1,
        metavar="N",
        help="stages of an engine that share its layers and work on different sequences at a time, on CPUs, "
        "with the same answers, bit for bit (default: %(default)s)",
    )


def _add_snapshots(group: Any) -> None:
    group.add_argument(
        "--state-snapshots",
        type=count,
        metavar="N",
        help="snapshots of recurrent states that prompts may begin with, of models that keep such (default: "
        "what a quarter of the KV cache's memory has room for)",
    )
    group.add_argument(
        "--state-snapshot-interval",
        type=positive_int,
        metavar="TOKENS",
        help="a prompt leaves a snapshot after each so many tokens (default: 4096)",
    )


def _add_backend(group: Any) -> None:
    group.add_argument(
        "--backend",
        choices=("auto", "cpu", "cuda", "null"),
        default="auto",
        help="auto: the GPU where one can be used, else the CPU; null: answers at once, without a model's "
        "sense (default: %(default)s)",
    )
    group.add_argument(
        "--gemm",
        choices=("invariant", "ranks", "library"),
        default="invariant",
        help="products of many rows on a GPU: same bits in every batch, also those of several ranks, or the "
        "vendor's library (default: %(default)s)",
    )


def engine_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Fields of EngineConfig that the options of `add_engine` give. The engine refuses senseless sizes."""
    given = {
        "threads": arguments.threads,
        "max_num_seqs": arguments.max_num_seqs,
        "max_num_batched_tokens": arguments.max_num_batched_tokens,
        "max_model_len": arguments.max_model_len,
        "block_size": arguments.block_size,
        "state_snapshots": arguments.state_snapshots,
        "state_snapshot_interval": arguments.state_snapshot_interval,
        "kv_cache_bytes": arguments.kv_cache_gib and int(arguments.kv_cache_gib * GIB),
    }
    settings = {
        "backend": arguments.backend,
        "tensor_parallel_size": arguments.tensor_parallel_size,
        "expert_parallel_size": arguments.expert_parallel_size,
        "pipeline_parallel_size": arguments.pipeline_parallel_size,
        "prefix_cache": not arguments.no_prefix_cache,
        "weights": arguments.weights,
        "dtype": arguments.dtype,
        "activation_dtype": arguments.activation_dtype,
        "weights_pages": arguments.weights_pages,
        "gemm": arguments.gemm,
        "scheduling_policy": arguments.scheduling_policy,
        "kv_cache_memory": arguments.kv_cache_memory,
        "kv_cache_dtype": arguments.kv_cache_dtype,
    }
    return settings | {name: value for name, value in given.items() if value is not None}


def log_resolved(section: str, config: Any, *, as_json: bool) -> None:
    """The settings of a config (a dataclass or a struct): an event of a JSON log, else lines of level
    debug."""
    import logging

    from firelane.telemetry.logs import event

    log = logging.getLogger(__name__)
    if as_json:
        event(log, "config", {"section": section, **_settings(config)})
        return
    for name, value in _settings(config).items():
        log.debug("%s.%s = %s", section, name, value)


def _settings(config: Any) -> dict[str, Any]:
    names = getattr(config, "__struct_fields__", None) or vars(config)
    return {name: getattr(config, name) for name in names}
