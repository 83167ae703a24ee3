"""Layers are bundled into cache groups, with the shapes of released models."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firelane.contract import CAUSAL, Chunk, Span, Window
from firelane.models.registry import load_program
from firelane.program.cache import CacheGroup, CacheLayer, group_layers
from firelane.program.ops import HeadShape
from firelane.program.values import DType
from tests.models.families import FAMILIES
from tests.models.toy_config import WINDOW

KIB = 1024


def layers(*pattern: tuple[Span, int], repeats: int = 1) -> list[CacheLayer]:
    """One layer for each (span, bytes per token), the whole pattern `repeats` times."""
    return [
        CacheLayer(
            layer=i,
            shape=HeadShape(heads=1, kv_heads=1, head_dim=nbytes // 4),
            dtype=DType.BF16,
            span=span,
        )
        for i, (span, nbytes) in enumerate(list(pattern) * repeats)
    ]


def counts(groups: tuple[CacheGroup, ...], span: Span) -> list[int]:
    return [len(group.layers) for group in groups if group.span == span]


def check(groups: tuple[CacheGroup, ...], made: list[CacheLayer]) -> None:
    assert len({group.bytes_per_token for group in groups}) == 1
    assert sorted(c.layer for group in groups for c in group.layers) == [c.layer for c in made]
    for group in groups:
        assert group.kind == "kv"
        assert {c.span for c in group.layers} == {group.span}
        end = 0
        for layer in group.layers:
            assert group.offsets[layer.layer] == end
            end += layer.bytes_per_token
        assert end <= group.bytes_per_token


def test_gemma_3_27b() -> None:
    """Five window layers, then a full one: 62 in all. 8 of 70 places are padding."""
    window = Window(1024)
    made = layers(*[(window, 8 * KIB)] * 5, (CAUSAL, 8 * KIB), repeats=11)[:62]
    groups = group_layers(made)
    check(groups, made)
    assert groups[0].bytes_per_token == 80 * KIB
    assert counts(groups, CAUSAL) == [10]
    assert sorted(counts(groups, window)) == [8, 8, 9, 9, 9, 9]


def test_gpt_oss_120b() -> None:
    made = layers((Window(128), 2 * KIB), (CAUSAL, 2 * KIB), repeats=18)
    groups = group_layers(made)
    check(groups, made)
    assert [(g.span, len(g.layers), g.bytes_per_token) for g in groups] == [
        (Window(128), 18, 36 * KIB),
        (CAUSAL, 18, 36 * KIB),
    ]


def test_llama_4_scout() -> None:
    made = layers(*[(Chunk(8192), 4 * KIB)] * 3, (CAUSAL, 4 * KIB), repeats=12)
    groups = group_layers(made)
    check(groups, made)
    assert groups[0].bytes_per_token == 48 * KIB
    assert counts(groups, CAUSAL) == [12]
    assert counts(groups, Chunk(8192)) == [12, 12, 12]


def test_gemma_4_31b() -> None:
    """Window layers of 16 KiB, full ones of 8 KiB: nothing is padding."""
    window = Window(1024)
    made = layers(*[(window, 16 * KIB)] * 5, (CAUSAL, 8 * KIB), repeats=10)
    groups = group_layers(made)
    check(groups, made)
    assert groups[0].bytes_per_token == 80 * KIB
    assert counts(groups, CAUSAL) == [10]
    assert counts(groups, window) == [5] * 10


def test_a_smallest_span_that_divides_badly_is_cut() -> None:
    """20 full and 8 window layers: 8 a group would pad by 4 of 32; 13 and 14: by 12 of 39."""
    made = layers(*[(CAUSAL, KIB)] * 20, *[(Window(64), KIB)] * 8)
    assert counts(group_layers(made), CAUSAL) == [6, 7, 7]
    made = layers(*[(CAUSAL, KIB)] * 13, *[(Window(64), KIB)] * 14)
    groups = group_layers(made)
    check(groups, made)
    assert groups[0].bytes_per_token == 7 * KIB
    assert counts(groups, CAUSAL) == [6, 7]
    assert counts(groups, Window(64)) == [7, 7]


@given(
    st.lists(
        st.tuples(
            st.sampled_from([CAUSAL, Window(3), Window(64), Chunk(64)]), st.sampled_from([256, 512, 1024])
        ),
        min_size=1,
        max_size=70,
    )
)
def test_any_model_has_groups_of_one_size(pattern: list[tuple[Span, int]]) -> None:
    made = layers(*pattern)
    groups = group_layers(made)
    check(groups, made)
    assert groups == group_layers(made)


def test_latents_are_kept_once() -> None:
    """DeepSeek V3: 61 layers of 512 + 64 numbers a token, whatever the number of heads."""
    latent = HeadShape(heads=128, kv_heads=1, head_dim=576, value_dim=512, shared=True)
    made = [CacheLayer(layer=i, shape=latent, dtype=DType.BF16, span=CAUSAL) for i in range(61)]
    (group,) = group_layers(made)
    check((group,), made)
    assert group.bytes_per_token == 61 * 576 * 2
    apart = CacheLayer(
        layer=0,
        shape=HeadShape(heads=8, kv_heads=2, head_dim=192, value_dim=128),
        dtype=DType.F32,
        span=CAUSAL,
    )
    assert apart.bytes_per_token == 2 * (192 + 128) * 4


def test_no_attention_no_groups() -> None:
    assert group_layers([]) == ()


@pytest.mark.parametrize(("family", "spans"), [("llama3", (CAUSAL,)), ("mistral", (Window(WINDOW),))])
def test_a_model_of_one_span_is_one_group(family: str, spans: tuple[Span, ...]) -> None:
    program = load_program(FAMILIES[family]())
    assert program.spans == spans
    (group,) = program.cache_groups
    assert group.layers == program.cache_layers
    assert program.kv_bytes_per_token == group.bytes_per_token == sum(c.bytes_per_token for c in group.layers)


def test_a_mixed_model() -> None:
    program = load_program(FAMILIES["qwen2"]())
    assert program.spans == (CAUSAL, Window(WINDOW))
    assert [len(g.layers) for g in program.cache_groups] == [1, 1]
    assert program.kv_bytes_per_token == program.cache_layers[0].bytes_per_token
