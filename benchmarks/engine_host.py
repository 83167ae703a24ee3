"""CPU time that the engine's host code takes for one sequence in one step, on the null backend.

    python benchmarks/engine_host.py [--running 200] [--steps 2000] [--profile]

"steady" keeps the same sequences decoding; "churn" ends and admits sequences all the time, with prompts of
220 tokens and outputs of 200 on average (exponential). The null backend's own time is in it.
"""

from __future__ import annotations

import argparse
import cProfile
import platform
import time

import numpy as np

from firelane.backends.null import NullExecutor
from firelane.contract import StepLimits
from firelane.engine.core import EngineCore
from firelane.link.framing import encode
from firelane.wire.frames import NewRequest, Rejected, Sampling, StepFrame, Submit

VOCAB = 32000
LIMITS = StepLimits(
    max_num_seqs=256,
    max_num_batched_tokens=2048,
    max_output_rows=288,
    max_model_len=8192,
    block_size=16,
    num_blocks=1 << 16,
)


class ClosedLoop:
    """Keeps `running` requests in flight; every frame is encoded as for a socket."""

    def __init__(self, running: int, prompt_tokens: int, output_tokens: int, *, exponential: bool) -> None:
        self._random = np.random.default_rng(0)
        self._sizes = (prompt_tokens, output_tokens)
        self._exponential = exponential
        self._missing = running
        self._next_id = 0
        self.tokens = 0
        self.bytes = 0

    def receive(self, wait_s: float | None) -> list[Submit]:
        del wait_s
        missing, self._missing = self._missing, 0
        return [Submit([self._request() for _ in range(missing)])] if missing else []

    def send(self, frame: StepFrame | Rejected) -> None:
        assert isinstance(frame, StepFrame), frame
        self.tokens += len(frame.tokens)
        self.bytes += len(encode(frame))
        self._missing += len(frame.finished)

    def _request(self) -> NewRequest:
        prompt, output = self._sizes
        if self._exponential:
            prompt = 1 + int(self._random.exponential(prompt))
            output = 1 + int(self._random.exponential(output))
        self._next_id += 1
        tokens = self._random.integers(0, VOCAB, min(prompt, 4000), dtype=np.int32)
        sampling = Sampling(seed=self._next_id, max_tokens=min(output, 4000), stop_token_ids=[VOCAB - 1])
        return NewRequest(id=self._next_id, prompt=tokens.tobytes(), sampling=sampling, salt=b"tenant")


def measure(loop: ClosedLoop, steps: int, warm_up: int, profile: bool) -> tuple[float, float, int]:
    """Microseconds of CPU a token, a step, and bytes of frames a step; the null backend's own time
    included."""
    core = EngineCore(NullExecutor(LIMITS, VOCAB), loop)
    for _ in range(warm_up):
        core.step()
    loop.tokens = loop.bytes = 0
    profiler = cProfile.Profile()
    if profile:
        profiler.enable()
    began_s = time.process_time()
    for _ in range(steps):
        core.step()
    spent_us = (time.process_time() - began_s) * 1e6
    if profile:
        profiler.disable()
        profiler.print_stats("tottime")
    return spent_us / loop.tokens, spent_us / steps, loop.bytes // steps


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--running", type=int, default=200)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    print(f"{platform.machine()}, Python {platform.python_version()}, {options.running} sequences running")
    print(f"{'':8}{'µs/token':>10}{'µs/step':>10}{'bytes/step':>12}")
    steady = ClosedLoop(options.running, 220, 4000, exponential=False)
    churn = ClosedLoop(options.running, 220, 200, exponential=True)
    for name, loop in (("steady", steady), ("churn", churn)):
        per_token, per_step, size = measure(loop, options.steps, 300, options.profile)
        print(f"{name:8}{per_token:10.2f}{per_step:10.0f}{size:12}")


if __name__ == "__main__":
    main()
