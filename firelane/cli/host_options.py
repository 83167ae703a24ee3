"""Options of `firelane serve` for ranks on several hosts, and the command on hosts that have no engine."""

from __future__ import annotations

import argparse
import contextlib
import logging
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firelane.cli.options import count, positive_float, positive_int
from firelane.errors import UsageError

if TYPE_CHECKING:
    from firelane.engine_config import EngineConfig, HostsConfig

DEFAULT_PORT = 29501
KEY_FILE = "--cluster-key-file"
MODULE = "firelane.engine.headless"
GROUP_ENDED = 75
"""Exit code of a host that may attach again (backends.cpu.ranks.follow.GroupEndedError)."""
FIRST_DELAY_S, MOST_DELAY_S, SOUND_S = 0.1, 5.0, 30.0
"""Waits before a host attaches again: they double while it does not live for SOUND_S."""
END_S = 5.0
log = logging.getLogger(__name__)


def add_hosts(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "several hosts", "ranks of one engine on several hosts' CPUs; the first has the engine and the server"
    )
    group.add_argument(
        "--nnodes",
        type=positive_int,
        metavar="M",
        help="hosts that share the ranks (default: LWS_GROUP_SIZE of Kubernetes' LeaderWorkerSet, or 1)",
    )
    group.add_argument(
        "--node-rank",
        type=count,
        metavar="R",
        help="number of this host; 0 serves, the others compute for it (default: LWS_WORKER_INDEX, or 0)",
    )
    group.add_argument(
        "--master-addr",
        metavar="HOST[:PORT]",
        help=f"address of host 0 that the others reach (default: LWS_LEADER_ADDRESS; port {DEFAULT_PORT})",
    )
    add_key_file(group, "that all hosts share")
    group.add_argument(
        "--node-timeout",
        type=positive_float,
        default=300.0,
        metavar="S",
        help="seconds for all hosts to be there (default: %(default)s)",
    )


def add_key_file(group: Any, whose: str) -> None:
    group.add_argument(
        KEY_FILE,
        type=Path,
        metavar="FILE",
        help=f"with a secret of at least 16 bytes {whose} (default: FIRELANE_CLUSTER_KEY)",
    )


def hosts_config(arguments: argparse.Namespace) -> HostsConfig | None:
    """Options of `add_hosts` and the environment as a config; None for one host. Raises UsageError."""
    from firelane import env
    from firelane.engine_config import HostsConfig

    group = env.worker_group()
    number = arguments.nnodes or (group.size if group else 1)
    if number == 1:
        given = [f"--{name}" for name in ("node-rank", "master-addr") if _given(arguments, name) is not None]
        if given:
            raise UsageError(f"{given[0]} is of several hosts: say with --nnodes how many there are")
        return None
    place = _given(arguments, "master-addr") or (group.leader_address if group else None)
    if place is None:
        raise UsageError(f"--nnodes {number}: say with --master-addr where host 0 is")
    own = _given(arguments, "node-rank")
    own = own if own is not None else group.index if group else None
    if own is None:
        raise UsageError(f"--nnodes {number}: say with --node-rank which one this is, from 0 on")
    _check_one_engine(arguments, number)
    address, port = _address(place)
    return HostsConfig(
        count=number,
        own=own,
        address=address,
        port=port,
        key_file=arguments.cluster_key_file and arguments.cluster_key_file.expanduser().absolute(),
        timeout_s=arguments.node_timeout,
    )


def follow(config: EngineConfig) -> int:
    """Run the ranks of this host, of one life of the group after the other, until a signal. Returns the exit
    code of what was wrong with this host, or 0."""
    from firelane import env
    from firelane.child_process import Child

    ended: list[int] = []
    running: list[Child] = []

    def end(number: int, _: object) -> None:
        ended.append(number)
        for child in running:
            child.terminate()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    delay_s = FIRST_DELAY_S
    while not ended:
        began_s = time.monotonic()
        command = [sys.executable, "-m", MODULE, config.to_json()]
        child = Child.start(command, env.for_child())
        running[:] = [child]
        if ended:
            child.terminate()
        code = child.end(None)
        if ended:
            break
        assert code is not None
        if code >= 0 and code != GROUP_ENDED:
            return code
        delay_s = FIRST_DELAY_S if time.monotonic() - began_s > SOUND_S else min(2 * delay_s, MOST_DELAY_S)
        log.info("rank_host_restarts exit_code=%d delay_s=%.1f", code, delay_s)
        time.sleep(delay_s)
    return 0


def _given(arguments: argparse.Namespace, name: str) -> Any:
    return getattr(arguments, name.replace("-", "_"))


def _check_one_engine(arguments: argparse.Namespace, number: int) -> None:
    if arguments.more_models:
        raise UsageError(f"--nnodes {number}: several hosts serve one model; leave --model out")
    if arguments.replicas > 1:
        raise UsageError(f"--nnodes {number}: several hosts are one engine; leave --replicas out")


def _address(text: str) -> tuple[str, int]:
    """Of HOST, HOST:PORT, or [HOST]:PORT."""
    host, sign, port = text.rpartition(":")
    if not sign or text.endswith("]") or (":" in host and not host.startswith("[")):
        return text.strip("[]"), DEFAULT_PORT
    with contextlib.suppress(ValueError):
        if 0 < int(port) < 1 << 16 and host:
            return host.strip("[]"), int(port)
    raise UsageError(f"--master-addr {text}: is not HOST, HOST:PORT or [HOST]:PORT")
