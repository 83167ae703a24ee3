"""A model by several processes, of this machine and of others: loads the executor in front, which is itself
the rank that draws tokens."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from firelane import env
from firelane.backends.cpu.loader import load_for
from firelane.backends.cpu.ranks.agreement import check_group, with_activation_dtype
from firelane.backends.cpu.ranks.hosts.others import OtherHosts
from firelane.backends.cpu.ranks.hosts.remote import TcpHosts
from firelane.backends.cpu.ranks.interconnect import leader_of
from firelane.backends.ranks.group import RankGroup
from firelane.contract import ProgressCallback
from firelane.engine_config import ExecutorConfig
from firelane.program.program import Program


def load_group(
    program: Program, model_dir: Path, config: ExecutorConfig, progress: ProgressCallback
) -> RankGroup:
    """The executor in front of the ranks that `config` asks for, which divide this process's cores.

    Raises what loader.load_for() does, UsageError for more ranks than cores or sizes that no cut exists for,
    MachineError for a rank that does not appear or ends.
    """
    settings, hosts = env.read(), check_group(program, config)
    config = with_activation_dtype(program, hosts, config)
    others = TcpHosts(hosts, config.hosts, settings) if config.hosts else OtherHosts()
    with ExitStack() as stack:
        stack.callback(others.close)
        leader, interconnect = leader_of(program, model_dir, config, hosts, others)
        stack.callback(leader.close)
        executor = load_for(settings, program, model_dir, leader.config, progress, leader, interconnect)
        interconnect.executor = executor
        stack.callback(executor.release)
        return RankGroup(executor, leader, stack)
