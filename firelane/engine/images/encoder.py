"""ImageEncoder: the tower of a model, run for one image after the other."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
from numpy.typing import NDArray

from firelane.backends import create_beside
from firelane.contract import Executor, ProgressCallback, StepInputs
from firelane.engine_config import EngineConfig
from firelane.models.towers.tower import ImageTower
from firelane.program.program import Program
from firelane.wire.images import ImageFormat

F32 = NDArray[np.float32]
NICENESS = 10
"""Niceness of its threads: of a processor that a step wants, too, they get about a tenth, and so go on where
there is always a step."""


class ImageEncoder:
    """Owns the executors of both programs, and the thread that they are driven from."""

    def __init__(self, tower: ImageTower, config: EngineConfig, served: Executor) -> None:
        """Nothing is loaded yet. served: of the language model."""
        self.tower, self._config, self._served = tower, config, served
        self._thread = ThreadPoolExecutor(1, "images", initializer=_step_back)
        self._executors: list[Executor] = []
        self.steps = 0
        """Steps of the tower's programs so far."""

    @property
    def format(self) -> ImageFormat:
        patches, tokens = self.tower.patches, self.tower.tokens
        return ImageFormat(
            factor=patches.factor,
            min_pixels=patches.min_pixels,
            max_pixels=patches.max_pixels,
            start=tokens.start,
            image=tokens.image,
            end=tokens.end,
        )

    def load(self, progress: ProgressCallback) -> None:
        """Raises a FirelaneError that says what is wrong with its files or the machine."""
        self._thread.submit(self._load, progress).result()

    def rows(self, pixels: NDArray[np.uint8]) -> F32:
        """The rows of an image, uint8 [height, width, 3]: float32 [rows, row width]. Called by the encoder's
        own thread."""
        told = self._run(0, self.tower.patches.rows(pixels))
        return self._run(1, self.tower.joined(told))

    @property
    def thread(self) -> ThreadPoolExecutor:
        """The thread that `rows` is called in."""
        return self._thread

    @property
    def weights_bytes(self) -> int:
        return sum(executor.weights_bytes for executor in self._executors)

    def settle(self) -> None:
        """Return when no weights are read or checked any more."""
        for executor in self._executors:
            executor.settle()

    def release(self) -> None:
        """Free threads and memory, when it has done what it does; idempotent."""
        self._thread.shutdown(cancel_futures=True)
        for executor in self._executors:
            executor.release()

    def _load(self, progress: ProgressCallback) -> None:
        """Threads of the executors are as urgent as this one."""
        patches = self.tower.patches
        lengths = (patches.most, patches.most // patches.merge**2)
        for program, length in zip(self.tower.programs, lengths, strict=True):
            config = _sized(self._config, program, length)
            backend, directory = self._config.backend, self._config.model_dir
            made = create_beside(self._served, backend, program, directory, config, progress)
            self._executors.append(made)
        self._inputs = [StepInputs.allocate(one.limits, one.features_in) for one in self._executors]
        for executor in self._executors:
            tables = executor.state.block_tables
            tables[:, 0] = np.arange(tables.shape[2])

    def _run(self, number: int, rows: F32) -> F32:
        executor, inputs, count = self._executors[number], self._inputs[number], len(rows)
        inputs.num_chunks, inputs.num_tokens, inputs.num_rows = 1, count, 0
        inputs.chunk_slot[0], inputs.chunk_start[0], inputs.chunk_len[0] = 0, 0, count
        inputs.features[:count] = rows
        executor.submit(inputs)
        self.steps += 1
        return executor.wait().features[:count].copy()


def _sized(config: EngineConfig, program: Program, length: int) -> EngineConfig:
    """The config of an executor for images of `length` rows, one at a time."""
    block = config.block_size or 16
    pages = -(-length // block)
    return msgspec.structs.replace(
        config,
        max_num_seqs=1,
        max_num_batched_tokens=length,
        max_model_len=length,
        block_size=block,
        num_blocks=pages if program.spans else None,
        kv_cache_bytes=max(1, pages * block * program.kv_bytes_per_token),
        kv_cache_memory="private",
        kv_cache_dtype="auto",
        activation_dtype="bf16",
        weights="bf16" if config.weights in ("int8", "int4") else config.weights,
        state_snapshots=0,
        spare_states=0,
        loras=(),
        max_loras=0,
        tiers=None,
    )


def _step_back() -> None:
    """The calling thread, and those that it starts, leave processors to others."""
    os.setpriority(os.PRIO_PROCESS, 0, NICENESS)  # Linux: of this thread alone
