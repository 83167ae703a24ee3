"""Flags and environment variables are a public interface: a change here is a decision."""

from __future__ import annotations

import argparse
import dataclasses

import pytest

from firelane import env
from firelane.backends import AUTO, BACKENDS
from firelane.cli import build_parser
from firelane.engine_config import (
    ACTIVATION_DTYPES,
    DTYPES,
    GEMMS,
    KV_CACHE_DTYPES,
    KV_CACHE_MEMORY,
    KV_TRANSPORTS,
    ROLES,
    SCHEDULING_POLICIES,
    SPECULATIVE,
    WEIGHTS,
    WEIGHTS_PAGES,
    EngineConfig,
)
from firelane.options import OptionError, declared
from firelane.server.options import shared as options
from firelane.server.options.sets import ENGINE_COMMAND, NODE_MODEL, NODE_SERVER, SERVE

ENGINE = (
    "--threads --tensor-parallel-size --expert-parallel-size --pipeline-parallel-size --max-num-seqs "
    "--max-num-batched-tokens "
    "--max-model-len --kv-cache-gib --block-size --kv-cache-dtype --weights --dtype "
    "--activation-dtype --lora --max-loras --max-lora-rank "
    "--no-prefix-cache --scheduling-policy --speculative --images --backend"
)
SAMPLING = (
    "--max-tokens --temperature --top-p --top-k --min-p --repetition-penalty --presence-penalty "
    "--frequency-penalty --seed --stop"
)
REMOTE = "--engines --engine-tls-ca --engine-tls-cert --engine-tls-key"
HOSTS = "--nnodes --node-rank --master-addr --cluster-key-file"
TIERS = "--kv-offloading-size --kv-disk --kv-disk-size --kv-disk-key-file"
PARSERS = "--chat-template --tool-parser --reasoning-parser"
ACCESS = "--api-keys --allow-anonymous --allow-origin --prices --tls-cert --tls-key"
LIMITS = "--max-body-mib"
STORAGE = "--data-dir"
TELEMETRY = "--log-format --metrics-port --log-prompts --otlp-endpoint"
SERVER = "--url --api-key"
FLAGS = {
    "run": f"MODEL TEXT --url --system {SAMPLING} --config {ENGINE} --no-sandbox",
    "list": "--known",
    "alias": "NAME MODEL --remove",
    "help": "COMMAND",
    "serve": "MODEL --config --model --replicas --prefill --decode --role-controller --routing --share-pages "
    "--kv-events-config --kv-transfer-address --kv-transport --kv-transfer-cipher "
    "--no-recovery --engine-timeout --step-deadline --no-sandbox "
    "--host --port --gateways --take-over --drain-timeout "
    "--served-model-name --max-queue --no-wait --alias "
    f"--unknown-fields --any-model {PARSERS} {ACCESS} {LIMITS} {STORAGE} {TELEMETRY} {HOSTS} {REMOTE} "
    f"{TIERS} {ENGINE}",
    "engine": "MODEL --config --host --port --tls-ca --tls-cert --tls-key --drain-timeout --log-format "
    "--no-sandbox --role --kv-transfer-address --kv-transport --kv-transfer-cipher --cluster-key-file "
    f"--engine-timeout --step-deadline {TIERS} {ENGINE}",
    "node": "CONFIG.toml --check --host --port --log-format",
    "ps": SERVER,
    "load": f"MODEL --timeout-s {SERVER}",
    "sleep": f"MODEL --timeout-s {SERVER}",
    "wake": f"MODEL --timeout-s {SERVER}",
    "role": f"ENGINE ROLE --model {SERVER}",
    "unload": f"MODEL --timeout-s {SERVER}",
    "keys new": "NAME",
    "keys hash": "",
    "chat": f"MODEL --url --system {SAMPLING} --config {ENGINE} --no-sandbox",
    "show": f"MODEL {SERVER}",
    "generate": f"MODEL --prompt --chat {SAMPLING} --config {ENGINE} --no-sandbox",
    "bench offline": "MODEL --threads --weights --kv-cache-dtype --activation-dtype --workload --repeats "
    "--json",
    "bench serve": "--url --backend --endpoint --model --api-key --seed --dataset-name --dataset-path "
    "--num-prompts --tokenizer --random-input-len --random-output-len --random-range-ratio "
    "--random-prefix-len --sharegpt-output-len --vocab-size --longest --max-concurrency --request-rate "
    "--burstiness --ramp-up-strategy --ramp-up-start-rps --ramp-up-end-rps --num-warmups --temperature "
    "--ignore-eos --extra-body --goodput --metric-percentiles --save-detailed --metadata --save-plot "
    "--json",
    "bench kernels": "MODEL --threads --weights --kv-cache-dtype --activation-dtype --isa --rows --json",
    "bench router": "--trace --policy --engines --seeds --json",
    "bench disagg": "MODEL --device --load --rate --engines --prefill --chunk --prefill-chunk --seconds "
    "--link-gbps --seeds --json",
    "bench host": "MODEL --streams --num-requests --seed --json",
    "pack": "MODEL OUT --threads --report",
    "unpack": "PACKED OUT --threads",
    "verify": "PACKED --threads",
    "quantize": "MODEL OUT --format --keep --threads --report --evaluate --evaluate-tokens "
    "--activation-dtype",
    "pull": f"SOURCE {SERVER}",
    "rm": f"SOURCE --dry-run {SERVER}",
    "cache list": "",
    "cache forget-tenant": f"NAME --kv-disk --kv-disk-key-file {SERVER}",
    "doctor": "MODEL --json --save --verify",
    "plan": "MODEL --device --batch --context --output --weights --kv-cache-dtype --tp --pp --dp --ep "
    "--max-num-seqs --max-num-batched-tokens --max-model-len --reserve-gib --drive-gbps --best-for --json "
    "--plot",
    "program": "MODEL --tensor-parallel-size --expert-parallel-size --pipeline-parallel-size "
    "--kv-cache-dtype",
    "version": "",
}
FILES_ALONE = (
    "header_timeout_s idle_timeout_s max_connections max_queue_age_s max_stored_responses max_upload_mib "
    "tenant_files_gib weights_pages state_snapshots state_snapshot_interval kv_cache_memory gemm "
    "kv_admission kv_tenant_size node_timeout stream_resume_s max_stream_resume_s stream_keep_s "
    "tenant_streams_mib streams_mib"
)
"""Keys of files that no command line has: nobody sets them by hand."""
ENVIRONMENT = {
    "FIRELANE_ALLOW_HTTP",
    "FIRELANE_CACHE_DIR",
    "FIRELANE_CACHE_LIMIT_GIB",
    "FIRELANE_CLUSTER_KEY",
    "FIRELANE_CXX",
    "FIRELANE_ISA",
    "FIRELANE_LOG_LEVEL",
}


def commands(parser: argparse.ArgumentParser, prefix: str = "") -> dict[str, argparse.ArgumentParser]:
    """Each command without subcommands, by its words."""
    found: dict[str, argparse.ArgumentParser] = {}
    subs = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    if not subs:
        return {prefix.strip(): parser}
    for name, sub in subs[0].choices.items():
        found |= commands(sub, f"{prefix} {name}")
    return found


def test_commands() -> None:
    assert set(commands(build_parser())) == set(FLAGS)


@pytest.mark.parametrize("command", FLAGS)
def test_flags(command: str) -> None:
    actions = commands(build_parser())[command]._actions
    names = [a.option_strings[-1] if a.option_strings else str(a.metavar) for a in actions]
    assert sorted(n for n in names if n not in ("--help", "--help-all")) == sorted(FLAGS[command].split())


def test_keys_of_files_alone() -> None:
    keys = {one.key for one in SERVE.by_key.values() if one.option.file}
    assert sorted(keys) == sorted(FILES_ALONE.split())
    assert {one.key for one in ENGINE_COMMAND.by_key.values() if one.option.file} <= keys
    known = {**NODE_SERVER.by_key, **NODE_MODEL.by_key}
    assert keys - {"node_timeout"} <= set(known)  # a node has its engines on one host


def test_every_flag_has_help() -> None:
    undocumented = [
        f"{name} {action.dest}"
        for name, parser in commands(build_parser()).items()
        for action in parser._actions
        if not action.help
    ]
    assert undocumented == []


def test_a_queue_may_have_no_room() -> None:
    arguments = build_parser().parse_args(["serve", "--max-queue", "0"])
    assert arguments.max_queue == 0


@pytest.mark.parametrize(
    ("option", "known"),
    [
        ("weights", WEIGHTS),
        ("gemm", GEMMS),
        ("scheduling_policy", SCHEDULING_POLICIES),
        ("kv_cache_memory", KV_CACHE_MEMORY),
        ("kv_cache_dtype", KV_CACHE_DTYPES),
        ("weights_pages", WEIGHTS_PAGES),
        ("dtype", DTYPES),
        ("activation_dtype", ACTIVATION_DTYPES),
        ("speculative", SPECULATIVE),
        ("backend", (AUTO, *BACKENDS)),
    ],
)
def test_choices_are_those_that_there_are(option: str, known: tuple[str, ...]) -> None:
    (one,) = (one for one in declared(EngineConfig) if one.field == option)
    assert (one.default, one.option.choices) == (known[0], known)
    for given in known:
        assert one.read(given) == given
    with pytest.raises(OptionError, match=f"'fp4' is not one of {known[0]}, {known[1]}"):
        one.read("fp4")
    if not one.option.file:
        words = ["serve", f"--{option.replace('_', '-')}", known[-1]]
        assert options.engine_settings(build_parser("serve").parse_args(words)) == {option: known[-1]}


def test_roles_and_transports_are_those_that_engines_have() -> None:
    parser = build_parser()
    for option, known in (("role", ROLES), ("kv_transport", KV_TRANSPORTS)):
        assert next(one.default for one in declared(EngineConfig) if one.field == option) == known[0]
        for given in known:
            arguments = parser.parse_args(["engine", f"--{option.replace('_', '-')}", given])
            assert getattr(arguments, option) == given


def test_environment_variables() -> None:
    assert {env.PREFIX + name for name in env.KNOWN} == ENVIRONMENT
    assert {f.name.upper() for f in dataclasses.fields(env.Environment)} == env.KNOWN | env.OF_ENGINE


def test_every_number_has_a_range() -> None:
    """A bare type takes any number, infinity and those that no memory has room for among them."""
    for name, parser in commands(build_parser()).items():
        for action in parser._actions:
            assert action.type not in (int, float), f"{name} {action.option_strings}"


@pytest.mark.parametrize(
    "read", [options.positive_int, options.count, options.positive_float, options.real(0)]
)
@pytest.mark.parametrize("text", ["1e300", "inf", "nan", "9" * 5000, "-1", "x", ""])
def test_numbers_beyond_all_measure_are_refused(read, text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        read(text)
