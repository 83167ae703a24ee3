"""The contract of groups of ranks, with ranks of GPUs: what their devices exchange is not here."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from firelane.backends.cuda.executor import CudaExecutor
from firelane.backends.cuda.ranks.group import StepInterconnect
from firelane.backends.ranks.leader import Interconnect
from firelane.backends.ranks.step_ring import shared_ring
from firelane.contract import StepInputs, StepLimits
from firelane.errors import MachineError
from tests.parallel.rank_contract import RankContract
from tests.parallel.rank_scripts import READY, FakeExecutor, failing, step


class KeptSteps(StepInterconnect):
    """The same; another rank's view of the steps stays."""

    def open(self, limits: StepLimits) -> None:
        super().open(limits)
        self.others = shared_ring(self.fds(1)[0], limits, self.steps)


class TestStepsOfGpus(RankContract):
    def make(self, executor: FakeExecutor, pp: int, tp: int) -> Interconnect:
        del tp
        made = KeptSteps(pp, Path("/meeting"))
        made.executor = cast(CudaExecutor, executor)
        return made

    def read(self, interconnect: Interconnect, steps: int) -> list[StepInputs]:
        assert isinstance(interconnect, KeptSteps)
        return [interconnect.others.read() for _ in range(steps)]

    def test_an_error_of_the_library_becomes_one_of_the_machine(self, monkeypatch: Any) -> None:
        monkeypatch.setattr("firelane.backends.ranks.group.BLAME_S", 0.01)
        with self.joined(monkeypatch, READY) as it:
            it.executor.fails = failing(RuntimeError("NCCL is lost"))
            with pytest.raises(MachineError, match="ranks of the model cannot exchange rows: NCCL is lost"):
                it.group.submit(step(1))

    def test_the_executor_in_front_waits_no_longer_for_a_lost_rank(self, monkeypatch: Any) -> None:
        with self.joined(monkeypatch, READY) as it:
            it.interconnect.end("rank 1 is gone")
            assert it.executor.log == ["give up: rank 1 is gone"]
