"""A host of a group of ranks that has no engine: its first rank, which is this process, starts the others of
the host, and hands on to them the steps that the engine's host sends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from firelane import env
from firelane.backends.cpu.executor import CpuExecutor
from firelane.backends.cpu.loader import load_for
from firelane.backends.cpu.ranks.agreement import check_group, with_activation_dtype
from firelane.backends.cpu.ranks.hosts.head_host import HeadHost
from firelane.backends.cpu.ranks.interconnect import leader_of
from firelane.backends.ranks.leader import Leader
from firelane.contract import ProgressCallback, StepInputs
from firelane.engine_config import ExecutorConfig
from firelane.errors import FirelaneError, PeerLostError
from firelane.program.program import Program


def follow_group(
    program: Program,
    model_dir: Path,
    config: ExecutorConfig,
    progress: ProgressCallback,
    on_loaded: Callable[[CpuExecutor], None],
) -> None:
    """Run the ranks of this host until the group ends. on_loaded: called once, before the first step.

    Raises PeerLostError when the group has ended, and what loader.load_for() does.
    """
    assert config.hosts is not None
    settings, hosts = env.read(), check_group(program, config)
    own = with_activation_dtype(program, hosts, config)
    with ExitStack() as stack:
        first = HeadHost(hosts, config.hosts, settings)
        stack.callback(first.close)
        try:
            leader, interconnect = leader_of(program, model_dir, own, hosts, first)
            stack.callback(leader.close)
            executor = load_for(settings, program, model_dir, leader.config, progress, leader, interconnect)
            interconnect.executor = executor
            stack.callback(executor.release)
            on_loaded(executor)
            _run(first, leader, executor)
        except PeerLostError:
            raise
        except (FirelaneError, MemoryError) as error:
            first.leave(f"{error}" or "out of memory")
            raise


def _run(first: HeadHost, leader: Leader, executor: CpuExecutor) -> None:
    """Run the steps of the ranks of this host. Raises PeerLostError when the group has ended."""
    why: list[str] = []

    def end(reason: str) -> None:
        why.append(reason)
        first.leave(reason)
        executor.end_group()

    def hand_on() -> None:
        """Steps of the engine, until its host is gone."""
        assert leader.limits is not None
        inputs = StepInputs.allocate(leader.limits)
        try:
            while True:
                first.receive_step(inputs, executor.state)
                leader.hand_out(inputs, executor.state)
        except PeerLostError as error:
            why.append(str(error))
            executor.end_group()

    leader.await_ready(end)
    first.tell_loaded(executor.weights_bytes + leader.weights_bytes, executor.kv_bytes + leader.kv_bytes)
    steps = threading.Thread(target=hand_on, name="steps", daemon=True)
    steps.start()
    executor.follow()
    executor.end_group()
    first.hang_up()
    steps.join()
    raise PeerLostError(why[0] if why else "a link to another host broke")
