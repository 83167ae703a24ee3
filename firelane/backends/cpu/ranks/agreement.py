"""Agreement of all hosts of a group of ranks: its layout, and what each host says of itself."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

import firelane
from firelane import env
from firelane.backends.cpu.native import MOST_IN_FLIGHT
from firelane.backends.cpu.ranks.hosts.attach import HostFacts, compared_options
from firelane.engine_config import ExecutorConfig
from firelane.errors import UsageError
from firelane.native import machine
from firelane.native.host_memory import available_bytes
from firelane.parallel.hosts import HostLayout
from firelane.parallel.ranks import RankLayout, rank_program
from firelane.program.integer_products import row_group
from firelane.program.ops import Linear
from firelane.program.program import Program
from firelane.storage import read_regular
from firelane.weights.checkpoints.checkpoint import Checkpoint


def check_group(program: Program, config: ExecutorConfig) -> HostLayout:
    """The group that `config` asks for. Raises UsageError for what ranks on CPUs do not take."""
    pp, nodes = config.pipeline_parallel_size, config.hosts.count if config.hosts else 1
    tp, ep = config.tensor_parallel_size, config.expert_parallel_size
    ranks = RankLayout.of(program, tp=tp, pp=pp, ep=ep, hosts=nodes)
    if pp >= MOST_IN_FLIGHT:
        raise UsageError(
            f"--pipeline-parallel-size {pp}: at most {MOST_IN_FLIGHT - 1} stages run on CPUs; lower it"
        )
    return HostLayout(ranks=ranks, count=nodes)


def with_activation_dtype(program: Program, hosts: HostLayout, config: ExecutorConfig) -> ExecutorConfig:
    """The config of a group of ranks: activations of "auto" become those of "bf16" where ranks would round
    inputs of integer products in other groups than one process does."""
    if config.activation_dtype != "auto":
        return config
    programs = [rank_program(program, hosts.ranks, rank) for rank in range(hosts.ranks.ranks)]
    if rounds_as_one_process(program, hosts.ranks, programs):
        return config
    return msgspec.structs.replace(config, activation_dtype="bf16")


def check_integer_rows(program: Program, layout: RankLayout, programs: Sequence[Program]) -> None:
    """UsageError where ranks would round inputs of integer products in groups of other sizes than one process
    does. programs: of all ranks."""
    if not rounds_as_one_process(program, layout, programs):
        raise UsageError(
            f"--activation-dtype int8: {layout.ranks} ranks would round rows of {program.name} in other "
            "groups than one process does; leave it out, or choose another number of ranks"
        )


def rounds_as_one_process(program: Program, layout: RankLayout, programs: Sequence[Program]) -> bool:
    """Whether ranks round inputs of integer products in the groups of one process. programs: of all ranks."""
    wanted = _row_groups(rank_program(program, RankLayout(), 0))
    return all(
        [group for own in programs[lane :: layout.lanes] for group in _row_groups(own)] == wanted
        for lane in range(layout.lanes)
    )


def _row_groups(program: Program) -> list[int]:
    """Row groups of the products whose inputs ranks share."""
    linears = [op for op in program.ops if isinstance(op, Linear) and op.segments]
    return [row_group(op.weight.k, op.segments) for op in linears]


def facts_of_host(model_dir: Path, program: Program, config: ExecutorConfig) -> HostFacts:
    """This host's account of itself. program: the whole model's, as the loader has it."""
    assert config.hosts is not None
    return HostFacts(
        version=firelane.__version__,
        host=config.hosts.own,
        hosts=config.hosts.count,
        options=compared_options(config),
        model=_model(model_dir),
        program=hashlib.sha256(repr(program).encode()).hexdigest(),
        isa=machine.choose_isa(env.read().isa, machine.cpu_identity()),
        available_bytes=available_bytes(),
    )


def _model(model_dir: Path) -> str:
    """A digest of config.json, and of the checkpoint as far as a sample tells."""
    config = read_regular(model_dir / "config.json")
    return hashlib.sha256(config + Checkpoint.open(model_dir).content.encode()).hexdigest()
