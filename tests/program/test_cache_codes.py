"""Codes of the KV cache: against torch's e4m3, whole rows, and the ops that write and read them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from firelane.contract.span import CAUSAL
from firelane.errors import UsageError
from firelane.models.registry import load_program
from firelane.program.cache import CacheLayer, group_layers
from firelane.program.cache_codes import CacheCode
from firelane.program.cache_rewrite import with_cache_code, with_cache_dtype
from firelane.program.ops import Attention, HeadShape, LatentCache, RopeAndCache
from firelane.program.reference import empty_cache
from firelane.program.values import DType, StepShape
from tests.models.families import FAMILIES
from tests.models.latents import LatentSpec, latent_program
from tests.program.test_reference import SHAPE, random, step_with, value

BOTH = pytest.mark.parametrize("code", CacheCode, ids=lambda code: code.value)
# Of a number in a row: half a step of whole numbers, or of the last of three bits; and the scale's rounding.
ERRORS = {CacheCode.INT8: lambda row: np.abs(row).max() / 250, CacheCode.FP8: lambda row: np.abs(row) / 15.9}


def restored(code: CacheCode, rows: np.ndarray) -> np.ndarray:
    numbers, scales = code.quantise(rows)
    return numbers * scales[..., None]


@BOTH
def test_numbers_are_near_what_they_were(code: CacheCode) -> None:
    rows = random(50, 64) * np.float32(10.0) ** np.arange(-25, 25, dtype=np.float32)[:, None]
    for row, found in zip(rows, restored(code, rows), strict=True):
        least = np.abs(row).max() / code.largest / 500
        assert (np.abs(found - row) <= ERRORS[code](row) + least).all()


def test_fp8_is_rounded_as_torch_does() -> None:
    """Over all sizes, numbers below the least one with a whole mantissa among them."""
    rows = (random(64, 64) * np.exp2(np.linspace(-16, 0, 64, dtype=np.float32))[:, None]).reshape(1, -1)
    numbers, scales = CacheCode.FP8.quantise(rows)
    want = torch.from_numpy(rows / scales[:, None]).to(torch.float8_e4m3fn).float().numpy()
    np.testing.assert_array_equal(numbers, want)
    assert (np.abs(numbers[numbers != 0]) < 2.0**-6).any()


def test_int8_rounds_ties_to_even() -> None:
    numbers, scales = CacheCode.INT8.quantise(np.array([[127, 0.5, 1.5, -2.5, -127]], np.float32))
    assert scales.tolist() == [1.0]
    assert numbers.tolist() == [[127, 0, 2, -2, -127]]


@BOTH
def test_scales_are_bf16_and_no_code_is_beyond_the_largest(code: CacheCode) -> None:
    rows = random(4000, 16)
    numbers, scales = code.quantise(rows)
    assert not (scales.view(np.uint32) & 0xFFFF).any()
    assert np.abs(numbers).max() == code.largest


@BOTH
def test_a_row_depends_on_itself_alone(code: CacheCode) -> None:
    rows = random(3, 5, 32)
    together = code.quantise(rows)
    alone = code.quantise(rows[1:2, 2])
    np.testing.assert_array_equal(together[0][1, 2], alone[0][0])
    assert together[1][1, 2] == alone[1][0]


@BOTH
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_is_nan(code: CacheCode, bad: float) -> None:
    rows = random(2, 16)
    rows[0, 3] = bad
    numbers, scales = code.quantise(rows)
    assert np.isnan(scales[0])
    assert (numbers[0] == 0).all()
    assert np.isfinite(restored(code, rows)[1]).all()


@BOTH
@pytest.mark.parametrize("size", [0.0, 1e-45, 1e-38])
def test_zeros_and_what_is_next_to_them(code: CacheCode, size: float) -> None:
    found = restored(code, np.full((1, 16), size, np.float32))
    assert (found == 0).all() or found == pytest.approx(np.full_like(found, size), rel=0.1)


@BOTH
def test_attention_over_codes(code: CacheCode) -> None:
    """Numbers with codes are close to those without, and no closer than codes are."""
    shape = replace(SHAPE, code=code)
    qkv = random(5, 64)
    found = {}
    for s in (SHAPE, shape):
        write = RopeAndCache(qkv=value("qkv", 64), layer=0, shape=s, rotary=None, out=value("q", 32))
        read = Attention(q=write.out, layer=0, shape=s, scale=0.3, out=value("out", 32))
        step = step_with({write.qkv: qkv})
        if s.code is not None:
            step.cache.codes[0], step.cache.value_scales[0] = code, np.full((2, 64, 2), np.nan, np.float32)
        write.reference(step)
        read.reference(step)
        found[s] = step.read(read.out)
    error = np.abs(found[shape] - found[SHAPE]).max() / np.abs(found[SHAPE]).max()
    assert 1e-4 < error < (0.02 if code is CacheCode.INT8 else 0.1)


@BOTH
def test_a_latent_and_its_position_have_scales_of_their_own(code: CacheCode) -> None:
    program = with_cache_code(latent_program(LatentSpec(dtype=DType.F32)), code)
    (op, *_) = [op for op in program.ops if isinstance(op, LatentCache)]
    latent = random(3, op.latent.width)
    latent[:, op.rank :] *= 1000
    step = step_with({op.q: random(3, op.q.width), op.latent: latent}, **{op.norm.name: random(op.rank)})
    cache = empty_cache(program, slots=2, positions=64)
    step = replace(step, cache=cache)
    op.reference(step)
    keys, values, scales = step.read_cache(op.layer, 1, 0, 3)
    np.testing.assert_array_equal(keys[..., : op.rank], values * scales[..., None])
    assert np.abs(values).max(axis=-1) == pytest.approx(code.largest, rel=0.01)
    assert np.abs(keys[..., op.rank :]).max() > 100 * np.abs(keys[..., : op.rank]).max()


@pytest.mark.parametrize(
    ("shape", "want"),
    [
        (HeadShape(heads=32, kv_heads=8, head_dim=64), 8 * (2 * 64 + 4)),
        (HeadShape(heads=16, kv_heads=1, head_dim=576, value_dim=512, shared=True), 576 + 4),
    ],
    ids=["heads", "latent"],
)
@BOTH
def test_bytes_of_a_token(shape: HeadShape, want: int, code: CacheCode) -> None:
    coded = replace(shape, code=code)
    layer = CacheLayer(layer=0, shape=coded, dtype=DType.BF16, span=CAUSAL)
    assert layer.bytes_per_token == want
    (group,) = group_layers([layer, replace(layer, layer=1)])
    assert group.offsets == {0: 0, 1: want}


@pytest.mark.parametrize("family", ["llama3", "deepseek_v3", "qwen3_next", "gemma4_e"])
def test_every_layer_of_a_program_has_the_code(family: str) -> None:
    """Recurrent states stay as they are; so does what an op costs besides the cache."""
    program = load_program(FAMILIES[family]() | {"torch_dtype": "bfloat16"})
    coded = with_cache_dtype(program, "int8")
    assert {layer.shape.code for layer in coded.cache_layers} == {CacheCode.INT8}
    assert coded.state_layers == program.state_layers
    assert 0.5 < coded.kv_bytes_per_token / program.kv_bytes_per_token < 0.67
    shape = StepShape(tokens=1, outputs=1, attended=1000, context=1000, sequences=1)
    assert coded.cost(shape).flops == program.cost(shape).flops
    assert coded.cost(shape).kv_bytes < 0.67 * program.cost(shape).kv_bytes


def test_plain_caches() -> None:
    bf16 = load_program(FAMILIES["llama3"]() | {"torch_dtype": "bfloat16"})
    f32 = load_program(FAMILIES["llama3"]() | {"torch_dtype": "float32"})
    assert with_cache_dtype(bf16, "auto") is bf16
    assert with_cache_dtype(bf16, "bf16") is bf16
    assert with_cache_dtype(f32, "auto") is f32
    with pytest.raises(UsageError, match="--kv-cache-dtype bf16: this model computes in float32"):
        with_cache_dtype(f32, "bf16")
