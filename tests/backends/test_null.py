from __future__ import annotations

import numpy as np
import pytest
from executor_contract import LIMITS, PROMPT, Batch, ExecutorContract

from firelane.backends import create_executor
from firelane.backends.null import NullExecutor
from firelane.backends.null.executor import mix
from firelane.contract import SAMPLE, StepLimits
from firelane.engine_config import ExecutorConfig
from firelane.errors import OutOfMemoryError, UsageError
from firelane.models.registry import load_program
from firelane.program.cache_rewrite import with_cache_dtype
from firelane.program.features import with_streams

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 512,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
}


class TestNull(ExecutorContract):
    def make_executor(self, **sizes):
        return NullExecutor(StepLimits(**LIMITS | sizes), vocab_size=100)


def test_features_of_the_null_backend_are_zeros(tmp_path):
    program = with_streams(load_program(CONFIG), (1, 0))
    config = ExecutorConfig(cache_dir=tmp_path, max_model_len=64)
    executor = create_executor("null", program, tmp_path, config, lambda *_: None)
    assert (executor.features_in, executor.features_out) == (0, 128)
    batch = Batch(executor)
    batch.install(0, PROMPT)
    outputs = batch.step((0, 0, 8, {7: SAMPLE}))
    assert outputs.features.shape == (executor.limits.max_num_batched_tokens, 128)
    assert not outputs.features.any()
    plain = TestNull().make_executor()
    assert (plain.features_in, plain.features_out) == (0, 0)


class TestNullThreeAhead(ExecutorContract):
    def make_executor(self, **sizes):
        return NullExecutor(StepLimits(**LIMITS | sizes), vocab_size=100, max_in_flight=3)


def load(tmp_path, **sizes):
    config = ExecutorConfig(cache_dir=tmp_path, max_num_seqs=4, **sizes)
    return create_executor("null", load_program(CONFIG), tmp_path, config, lambda *_: None)


@pytest.mark.parametrize(
    ("sizes", "problem"),
    [
        ({"replicas": 9, "kv_cache_bytes": 1}, "9 engines on one GPU: it takes 8 at most"),
        ({"replicas": 2}, "2 engines on one GPU: .* say with --kv-cache-gib"),
        ({"kv_cache_memory": "shared"}, "kv_cache_memory = shared: a GPU's KV cache is private"),
        ({"kv_cache_dtype": "int8"}, "--kv-cache-dtype int8: a GPU's KV cache keeps the numbers"),
        ({"activation_dtype": "int8"}, "--activation-dtype int8: a GPU multiplies bf16 numbers"),
        ({"kv_cache_dtype": "fp8"}, "--kv-cache-dtype fp8: a GPU's KV cache keeps the numbers"),
    ],
)
def test_what_a_gpu_does_not_take_is_refused_before_it_is_touched(tmp_path, sizes, problem):
    config = ExecutorConfig(cache_dir=tmp_path, **sizes)
    with pytest.raises(UsageError, match=problem):
        create_executor("cuda", load_program(CONFIG), tmp_path, config, lambda *_: None)


def test_sizes_come_from_the_program(tmp_path):
    executor = load(tmp_path)
    assert executor.vocab_size == 512
    assert executor.limits.max_model_len == 256
    assert executor.limits.max_output_rows == 36


def test_a_coded_cache_holds_more_tokens(tmp_path):
    """Its sizes are those of its codes and their scales."""
    program = load_program(CONFIG)
    plain, coded = program.kv_bytes_per_token, with_cache_dtype(program, "int8").kv_bytes_per_token
    config = ExecutorConfig(
        cache_dir=tmp_path, max_num_seqs=400, kv_cache_bytes=800 * 16 * plain, kv_cache_dtype="int8"
    )
    loaded = create_executor("null", with_cache_dtype(program, "int8"), tmp_path, config, lambda *_: None)
    assert loaded.limits.num_blocks == 800 * plain // coded > 1300
    assert loaded.limits.kv_cache_code == "int8"
    assert load(tmp_path).limits.kv_cache_code == ""


def test_cache_too_small_for_one_sequence(tmp_path):
    with pytest.raises(OutOfMemoryError, match="one sequence of 256 needs"):
        load(tmp_path, max_model_len=256, kv_cache_bytes=20_000)
    assert load(tmp_path, kv_cache_bytes=20_000).limits.max_model_len < 256


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"max_num_batched_tokens": 3}, "below max_num_seqs"),
        ({"block_size": 0}, "block_size: 0 is not 1 or more"),
        ({"threads": 0}, "threads: 0 is not 1 or more"),
        ({"gemm": "fast"}, "gemm: .fast. is not one of invariant, ranks, library"),
        ({"kv_cache_dtype": "int4"}, "kv_cache_dtype: .int4. is not one of auto, bf16, int8, fp8"),
        ({"activation_dtype": "int4"}, "activation_dtype: .int4. is not one of auto, bf16, int8"),
        ({"weights": "fp4"}, "weights: .fp4. is not one of auto, bf16, lossless"),
    ],
)
def test_senseless_sizes(tmp_path, sizes, message):
    with pytest.raises(UsageError, match=message):
        load(tmp_path, **sizes)


def test_sizes_left_open_are_the_backends_own(tmp_path):
    assert load(tmp_path).limits.block_size == 16
    assert load(tmp_path).limits.max_num_batched_tokens == 512


def test_unknown_backend(tmp_path):
    with pytest.raises(UsageError, match="choose one of auto, cpu, cuda, null"):
        create_executor("tpu", load_program(CONFIG), tmp_path, ExecutorConfig(cache_dir=tmp_path), print)


def test_tokens_spread_over_the_vocabulary():
    tokens = mix(np.full(20_000, 3, np.uint64), np.arange(20_000, dtype=np.int32)) % np.uint64(100)
    counts = np.bincount(tokens.astype(int), minlength=100)
    assert counts.min() > 120
    assert counts.max() < 290


def test_a_high_bias_forces_its_token():
    executor = NullExecutor(StepLimits(**LIMITS), 100)
    batch = Batch(executor)
    batch.install(0, PROMPT)
    executor.state.bias_ids[0, :2], executor.state.bias_values[0, :2] = [5, 42], [1.0, 100.0]
    executor.state.sampling[0]["num_bias"] = 2
    assert batch.step((0, 0, 8, {7: SAMPLE})).tokens[0] == 42


def test_a_masked_row_keeps_its_usual_token_or_takes_the_lowest_allowed():
    batch = Batch(NullExecutor(StepLimits(**LIMITS), 100))
    usual = batch.generate(0, PROMPT, 1, seed=3)[0]
    for allowed, expected in (
        ([usual, 0, 99], usual),
        ([t for t in (98, 64, 99) if t != usual], 64 if usual != 64 else 98),
        ([], 0),
    ):
        batch.install(0, PROMPT, seed=3)
        batch.allow(0, allowed)
        assert batch.step((0, 0, 8, {7: SAMPLE})).tokens[0] == expected


class Clock:
    """Time that goes on by sleeping alone."""

    def __init__(self):
        self.now_s = 100.0

    def monotonic(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds


def timed(clock, **options):
    return NullExecutor(StepLimits(**LIMITS), 100, clock=clock.monotonic, sleep=clock.sleep, **options)


def test_a_step_takes_the_modelled_time():
    clock = Clock()
    executor = timed(clock, step_time=lambda inputs: 0.001 * inputs.num_tokens)
    batch = Batch(executor)
    batch.install(0, PROMPT)
    batch.submit((0, 0, 8, {7: SAMPLE}))
    assert clock.now_s == 100.0
    executor.wait()
    assert clock.now_s == pytest.approx(100.008)


def test_steps_in_flight_run_one_after_another():
    clock = Clock()
    executor = timed(clock, step_time=lambda _: 0.01, max_in_flight=2)
    batch = Batch(executor)
    batch.install(0, PROMPT)
    batch.submit((0, 0, 8, {7: SAMPLE}))
    batch.submit((0, 8, 1, {8: SAMPLE}))
    with pytest.raises(AssertionError, match="too many"):
        batch.submit((0, 9, 1, {9: SAMPLE}))
    executor.wait()
    executor.wait()
    assert clock.now_s == pytest.approx(100.02)
