"""OtherHosts: the other hosts of a group of ranks, as one of them sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from firelane.backends.cpu.link import LinkSizes, RankWires
from firelane.backends.cpu.ranks.hosts.attach import HostFacts
from firelane.contract import SlotState, StepInputs, StepLimits
from firelane.native.host_memory import available_bytes


class OtherHosts:
    """This class is for a group on one host, which has no others."""

    weights_bytes = kv_bytes = 0

    def attach(self, mine: HostFacts) -> Mapping[str, int]:
        """Wait until all are there, and are like this one, which is `mine`. Returns the fields of StepLimits
        that the engine's host has found, if this is another one. Raises MachineError, UsageError."""
        del mine
        return {}

    @property
    def available_bytes(self) -> int:
        """Free memory of the host that has the least, this one included."""
        return available_bytes()

    def start(self, limits: StepLimits, sizes: LinkSizes) -> tuple[LinkSizes, Mapping[int, RankWires]]:
        """Connect the ranks of all hosts. Returns the sizes that hold for all, and the wires of this host's
        ranks. Raises MachineError."""
        del limits
        return sizes, {}

    def await_ready(self, on_end: Callable[[str], None]) -> None:
        """Wait until their ranks are ready. on_end: called from another thread, with the reason, when a host
        leaves later. Raises MachineError."""

    def hand_out(self, inputs: StepInputs, state: SlotState) -> None:
        """Have them run a step. Raises MachineError."""

    def close(self) -> None:
        """Idempotent."""
