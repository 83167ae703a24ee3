"""The CPU backend keeps the contract of every executor."""

from __future__ import annotations

import pytest
from executor_contract import LIMITS, ExecutorContract

from firelane.engine.load import load_executor
from firelane.engine_config import EngineConfig
from tests.models.families import make_checkpoint


class TestCpu(ExecutorContract):
    @pytest.fixture(autouse=True)
    def _model(self, tmp_path_factory, kernel_cache):
        self.model_dir, self.cache_dir = tmp_path_factory.getbasetemp() / "cpu-contract", kernel_cache
        if not self.model_dir.exists():
            make_checkpoint("llama3", "bfloat16", self.model_dir)

    def make_executor(self, **sizes):
        sizes = {k: v for k, v in (LIMITS | sizes).items() if k not in ("max_output_rows", "num_blocks")}
        config = EngineConfig(model_dir=self.model_dir, cache_dir=self.cache_dir, threads=2, **sizes)
        return load_executor(config, lambda *_: None)
