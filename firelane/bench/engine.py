"""The engine in this process, for benchmarks: no gateway and no socket, the same core and the same steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from firelane.contract import Executor
from firelane.engine.core import EngineCore
from firelane.engine.process.load import load_executor, read_program
from firelane.engine_config import EngineConfig
from firelane.errors import MachineError
from firelane.program.program import Program
from firelane.weights.progress import Progress
from firelane.wire.cache_events import PageChanges
from firelane.wire.frames import NewRequest, Rejected, Sampling, StepFrame


class _CountingChannel:
    """Requests are submitted directly; of what comes back only the ends matter."""

    def __init__(self) -> None:
        self.left = 0
        self.rejected = ""

    def receive(self, wait_s: float | None) -> tuple[()]:
        del wait_s
        return ()

    def send(self, frame: StepFrame | Rejected | PageChanges) -> None:
        assert not isinstance(frame, PageChanges), "nobody has asked for pages"
        if isinstance(frame, Rejected):
            self.left -= 1
            self.rejected = frame.message
        else:
            self.left -= len(frame.finished)


class EngineGenerator:
    """Runs `program` on an executor, which it owns."""

    def __init__(self, program: Program, executor: Executor, *, prefix_cache: bool = False) -> None:
        self.program = program
        self._executor = executor
        self._channel = _CountingChannel()
        self._core = EngineCore(self._executor, self._channel, prefix_cache=prefix_cache)
        self._next_id = 1

    @classmethod
    def load(cls, config: EngineConfig, progress: Progress) -> EngineGenerator:
        """Load the model of `config.model_dir`. Raises what loading raises."""
        return cls(read_program(config), load_executor(config, progress), prefix_cache=config.prefix_cache)

    @property
    def vocab_size(self) -> int:
        return self._executor.vocab_size

    @property
    def max_model_len(self) -> int:
        return self._executor.limits.max_model_len

    def generate(self, prompts: Sequence[list[int]], output_tokens: int) -> None:
        """Greedy, exactly `output_tokens` for each prompt. Raises MachineError when the engine refuses
        one."""
        sampling = Sampling(temperature=0.0, max_tokens=output_tokens)
        self._channel.left = len(prompts)
        for prompt in prompts:
            ids = np.asarray(prompt, "<i4").tobytes()
            self._core.submit(NewRequest(id=self._next_id, prompt=ids, sampling=sampling))
            self._next_id += 1
        while self._channel.left or not self._core.is_idle:
            self._core.step()
        if self._channel.rejected:
            raise MachineError(f"the engine refused the workload: {self._channel.rejected}")

    def close(self) -> None:
        self._executor.release()
