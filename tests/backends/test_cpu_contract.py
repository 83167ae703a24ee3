"""The CPU backend keeps the contract of every executor, and serves no damaged weights."""

from __future__ import annotations

import pytest
from executor_contract import LIMITS, ExecutorContract
from recurrent_contract import RecurrentContract

from firelane.contract import StepInputs
from firelane.engine.process.load import load_executor
from firelane.engine_config import EngineConfig
from firelane.errors import CacheError
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

    def test_damaged_weights_end_the_next_step(self, tmp_path, kernel_cache):
        """Mapped and served, until the check has read them; the next load packs them anew."""
        (tmp_path / "kernels").symlink_to(kernel_cache / "kernels")
        self.cache_dir = tmp_path
        self.make_executor().release()
        (packed,) = (tmp_path / "weights").glob("*.weights")
        whole = packed.read_bytes()
        packed.unlink()
        packed.write_bytes(whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:])
        executor = self.make_executor()
        executor.settle()
        with pytest.raises(CacheError, match="damaged; the file was removed, start again"):
            executor.submit(StepInputs.allocate(executor.limits))
        executor.release()
        executor = self.make_executor()
        executor.settle()
        assert packed.read_bytes() == whole
        executor.release()


class TestRecurrentCpu(RecurrentContract):
    @pytest.fixture(autouse=True)
    def _model(self, tmp_path_factory, kernel_cache):
        self.model_dir, self.cache_dir = tmp_path_factory.getbasetemp() / "cpu-recurrent", kernel_cache
        if not self.model_dir.exists():
            make_checkpoint("qwen3_next", "bfloat16", self.model_dir)

    def make_executor(self, **sizes):
        executor = TestCpu.make_executor(self, speculative="ngram", **sizes)
        executor.states[:] = 0xFF
        return executor
