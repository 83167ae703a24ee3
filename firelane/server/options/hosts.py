"""Ranks on several hosts: what options say of them, and the command on hosts that have no engine."""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import time
from typing import TYPE_CHECKING

from firelane.errors import PeerLostError, UsageError

if TYPE_CHECKING:
    from firelane.engine_config import EngineConfig, HostsConfig
    from firelane.options import Values

MODULE = "firelane.engine.process.headless"
GROUP_ENDED = PeerLostError.exit_code
"""The exit code of a host that may attach again."""
FIRST_DELAY_S, MOST_DELAY_S, SOUND_S = 0.1, 5.0, 30.0
"""Waits before a host attaches again: they double while it does not live for SOUND_S."""
END_S = 5.0
log = logging.getLogger(__name__)


def hosts_config(values: Values) -> HostsConfig | None:
    """Hosts that options and the environment give; None for one host. Raises UsageError."""
    from firelane import env
    from firelane.engine_config import HostsConfig
    from firelane.options import fields

    given, group = fields(HostsConfig, values), env.worker_group()
    number = given.get("count") or (group.size if group else 1)
    if number == 1:
        alone = [f"--{key.replace('_', '-')}" for key in ("node_rank", "master_addr") if key in values]
        if alone:
            raise UsageError(f"{alone[0]} is of several hosts: say with --nnodes how many there are")
        return None
    place = given.get("address") or (group.leader_address if group else None)
    if place is None:
        raise UsageError(f"--nnodes {number}: say with --master-addr where host 0 is")
    own = given.get("own", group.index if group else None)
    if own is None:
        raise UsageError(f"--nnodes {number}: say with --node-rank which one this is, from 0 on")
    _check_one_engine(values, number)
    address, port = _address(place)
    if (key_file := given.get("key_file")) is not None:
        given["key_file"] = key_file.absolute()
    given |= {"count": number, "own": own, "address": address}
    return HostsConfig(port=port, **given)


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


def _check_one_engine(values: Values, number: int) -> None:
    if values.get("model"):
        raise UsageError(f"--nnodes {number}: several hosts serve one model; leave --model out")
    if values.get("replicas", 1) > 1:
        raise UsageError(f"--nnodes {number}: several hosts are one engine; leave --replicas out")


def _address(text: str) -> tuple[str, int]:
    """Host and port of HOST, HOST:PORT, or [HOST]:PORT."""
    from firelane.engine_config import HOSTS_PORT

    host, sign, port = text.rpartition(":")
    if not sign or text.endswith("]") or (":" in host and not host.startswith("[")):
        return text.strip("[]"), HOSTS_PORT
    with contextlib.suppress(ValueError):
        if 0 < int(port) < 1 << 16 and host:
            return host.strip("[]"), int(port)
    raise UsageError(f"--master-addr {text}: is not HOST, HOST:PORT or [HOST]:PORT")
