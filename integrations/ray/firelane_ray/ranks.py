"""firelane-ray-ranks --nnodes N [OPTIONS] -- MODEL [OPTIONS OF firelane serve]: one engine over several
hosts.

Each host of the group is an actor of Ray in a bundle of one placement group; it runs `firelane serve` with
--nnodes, --node-rank and --master-addr, and starts it again when it ends. The first one serves.
"""

from __future__ import annotations

import argparse
import secrets
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayActorError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from firelane.errors import FirelaneError
from firelane.server.options.shared import positive_float, positive_int
from firelane_ray.rank_host import RankHost

STRATEGIES = ("STRICT_SPREAD", "SPREAD", "PACK", "STRICT_PACK")
POLL_S = 1.0
MOST_STARTS = 5
"""In a row, of one host, each shorter than STABLE_S."""
STABLE_S = 30.0


@dataclass(frozen=True, kw_only=True)
class GroupConfig:
    """arguments: of `firelane serve`, the same on all hosts. cpus, gpus: of each host."""

    hosts: int
    arguments: tuple[str, ...]
    cpus: float = 1.0
    gpus: float = 0.0
    strategy: str = "STRICT_SPREAD"


class RankGroup:
    """Owns the placement group and its actors."""

    def __init__(self, config: GroupConfig) -> None:
        """Raises FirelaneError where the cluster has no room for the group within a minute."""
        self._config = config
        self._key = secrets.token_hex(32)
        bundle = {"CPU": config.cpus} | ({"GPU": config.gpus} if config.gpus else {})
        self._group = placement_group([bundle] * config.hosts, strategy=config.strategy)
        if not self._group.wait(60):
            remove_placement_group(self._group)
            raise FirelaneError(
                f"the cluster has no room for {config.hosts} hosts with {bundle} ({config.strategy}): "
                "ask for less, or see `ray status`"
            )
        self._actors: list[Any] = [self._actor(number) for number in range(config.hosts)]
        self._starts = [0] * config.hosts
        self._began_s = [0.0] * config.hosts
        self._place = self._place_of_first()
        for number in range(config.hosts):
            self._start(number)

    @property
    def address(self) -> str:
        """The address of the first host."""
        return self._place.rpartition(":")[0]

    @property
    def pids(self) -> list[int]:
        """The process id of each host's server."""
        return ray.get([actor.pid.remote() for actor in self._actors])

    def look(self) -> None:
        """Start again what has ended. Raises FirelaneError where that does not help."""
        for number, actor in enumerate(self._actors):
            try:
                code = ray.get(actor.poll.remote())
            except RayActorError:
                self._actors[number] = self._actor(number)
                code = -1
            if code is not None:
                self._start_again(number, code)

    def close(self) -> None:
        for actor in self._actors:
            ray.kill(actor)
        remove_placement_group(self._group)

    def _actor(self, number: int) -> Any:
        at = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=number)
        made = ray.remote(RankHost).options(
            num_cpus=self._config.cpus, num_gpus=self._config.gpus, scheduling_strategy=at
        )
        return made.remote()

    def _place_of_first(self) -> str:
        return ray.get(self._actors[0].place.remote())

    def _start(self, number: int) -> None:
        group = ("--nnodes", str(self._config.hosts), "--node-rank", str(number))
        arguments = [*self._config.arguments, *group, "--master-addr", self._place]
        ray.get(self._actors[number].start.remote(arguments, self._key))
        self._began_s[number] = time.monotonic()
        self._starts[number] += 1

    def _start_again(self, number: int, code: int) -> None:
        if time.monotonic() - self._began_s[number] >= STABLE_S:
            self._starts[number] = 0
        if self._starts[number] >= MOST_STARTS:
            raise FirelaneError(f"host {number} ended {MOST_STARTS} times (the last time with {code})")
        self._start(number)


def main(arguments: Sequence[str] | None = None) -> int:
    config = _read(arguments)
    signal.signal(signal.SIGINT, _end)
    signal.signal(signal.SIGTERM, _end)
    ray.init(ignore_reinit_error=True, log_to_driver=True)
    try:
        group = RankGroup(config)
        print(f"group of {config.hosts} hosts, the first one at {group.address}; Ctrl-C ends it", flush=True)
        try:
            while True:
                group.look()
                time.sleep(POLL_S)
        finally:
            group.close()
    except KeyboardInterrupt:
        return 0
    except FirelaneError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


def _end(number: int, frame: object) -> None:
    """Signal handler."""
    del number, frame
    raise KeyboardInterrupt


def _read(arguments: Sequence[str] | None) -> GroupConfig:
    parser = argparse.ArgumentParser("firelane-ray-ranks", description=__doc__, allow_abbrev=False)
    parser.add_argument("--nnodes", type=positive_int, required=True, metavar="N", help="hosts of the group")
    parser.add_argument(
        "--cpus", type=positive_float, default=1.0, metavar="X", help="of each host, for Ray's count"
    )
    parser.add_argument("--gpus", type=positive_float, metavar="X", help="of each host (default: none)")
    parser.add_argument(
        "--strategy",
        choices=STRATEGIES,
        default="STRICT_SPREAD",
        help="how hosts are spread (default: %(default)s)",
    )
    parser.add_argument("serve", nargs="+", metavar="MODEL …", help="arguments of firelane serve, after --")
    given = parser.parse_args(arguments)
    return GroupConfig(
        hosts=given.nnodes,
        arguments=tuple(given.serve),
        cpus=given.cpus,
        gpus=given.gpus or 0.0,
        strategy=given.strategy,
    )


if __name__ == "__main__":
    sys.exit(main())
