"""Agreement of all hosts of a group of ranks: its layout, and what each host says of itself."""

from __future__ import annotations

import hashlib
from pathlib import Path

import firelane
from firelane import env
from firelane.backends.cpu.attach import Hello, compared_options
from firelane.backends.cpu.memory import available_bytes
from firelane.backends.cpu.native import MOST_IN_FLIGHT
from firelane.engine_config import ExecutorConfig
from firelane.errors import UsageError
from firelane.native import machine
from firelane.parallel.hosts import HostLayout
from firelane.parallel.ranks import RankLayout
from firelane.program.program import Program
from firelane.storage import read_regular
from firelane.weights.checkpoint import Checkpoint


def check_group(program: Program, config: ExecutorConfig) -> HostLayout:
    """The group that `config` asks for. Raises UsageError for what ranks on CPUs do not take."""
    pp, nodes = config.pipeline_parallel_size, config.hosts.count if config.hosts else 1
    ranks = RankLayout.of(program, tp=config.tensor_parallel_size, pp=pp, ep=config.expert_parallel_size)
    if pp >= MOST_IN_FLIGHT:
        raise UsageError(
            f"--pipeline-parallel-size {pp}: at most {MOST_IN_FLIGHT - 1} stages run on CPUs; lower it"
        )
    if config.activation_dtype != "bf16":
        raise UsageError(
            f"--activation-dtype {config.activation_dtype} with {ranks.ranks} ranks: they multiply bf16 "
            "numbers; leave one of them out"
        )
    return HostLayout(ranks=ranks, count=nodes)


def hello_of(
    model_dir: Path, program: Program, config: ExecutorConfig, settings: env.Environment, port: int = 0
) -> Hello:
    """What this host says of itself. program: the whole model's, as the loader has it."""
    assert config.hosts is not None
    return Hello(
        version=firelane.__version__,
        host=config.hosts.own,
        hosts=config.hosts.count,
        options=compared_options(config),
        model=_model(model_dir),
        program=hashlib.sha256(repr(program).encode()).hexdigest(),
        isa=machine.choose_isa(settings.isa, machine.cpu_identity()),
        available_bytes=available_bytes(),
        port=port,
    )


def _model(model_dir: Path) -> str:
    """A digest of config.json, and of the checkpoint as far as a sample tells."""
    config = read_regular(model_dir / "config.json")
    return hashlib.sha256(config + Checkpoint.open(model_dir).content.encode()).hexdigest()
