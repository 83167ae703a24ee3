from __future__ import annotations

import pytest

from firelane.contract import Window
from firelane.models.registry import load_program
from firelane.program.ops import Attention, GatedLinear, Linear
from firelane.program.printer import format_program
from firelane.program.values import Cost, DType, Rows, StepShape, Value
from tests.models.families import FAMILIES
from tests.models.toy_config import WINDOW
from tests.program.fakes import Fake, fake_program

A = Value("a", Rows.TOKEN, 4, DType.F32)
B = Value("b", Rows.TOKEN, 4, DType.F32)
LLAMA = load_program(FAMILIES["llama3"]() | {"torch_dtype": "bfloat16"})
MISTRAL = load_program(FAMILIES["mistral"]())


def step(tokens: int, context: int, sequences: int = 1) -> StepShape:
    attended = tokens * context - tokens * (tokens - 1) // 2
    return StepShape(
        tokens=tokens, outputs=sequences, attended=attended, context=context, sequences=sequences
    )


def test_a_value_is_made_once_and_before_its_use() -> None:
    with pytest.raises(AssertionError, match="b before it is made"):
        fake_program(Fake(inputs=(B,), out=A))
    with pytest.raises(AssertionError, match="a is made twice"):
        fake_program(Fake(out=A), Fake(out=A))


def test_costs_add_up() -> None:
    shape = step(3, 10)
    total = Cost()
    for op in LLAMA.ops:
        total = total + op.cost(shape)
    assert LLAMA.cost(shape) == total


def test_matrix_costs() -> None:
    """2 FLOPs a weight and row; the weights are read once however many rows there are."""
    for op in LLAMA.ops:
        if isinstance(op, Linear | GatedLinear):
            rows = 7 if op.x.rows is Rows.TOKEN else 1
            n, k = op.weight.shape
            assert op.cost(step(7, 7)) == Cost(flops=2.0 * rows * n * k, weight_bytes=2.0 * n * k)


def test_attention_costs() -> None:
    attention = next(op for op in LLAMA.ops if isinstance(op, Attention))
    cost = attention.cost(step(1, 100))
    assert cost.flops == 2 * 2 * 100 * 6 * 16
    assert cost.kv_bytes == 100 * 2 * 2 * 16 * 2


def test_a_window_bounds_attention_costs() -> None:
    attention = next(op for op in MISTRAL.ops if isinstance(op, Attention))
    window = WINDOW
    assert attention.span == Window(window)
    assert attention.cost(step(1, 10 * window)).flops == attention.cost(step(1, window)).flops
    assert attention.cost(step(1, 10 * window)).kv_bytes <= (window + 1) * 2 * 2 * 32 * 4


def test_decode_reads_nearly_all_weights_once() -> None:
    assert LLAMA.weights_bytes < LLAMA.cost(step(1, 1)).weight_bytes < 1.01 * LLAMA.weights_bytes


def test_cache_bytes() -> None:
    assert LLAMA.kv_bytes_per_token == 2 * (2 * 2 * 16 * 2)
    assert MISTRAL.kv_bytes_per_token == 2 * (2 * 2 * 32 * 4)


def test_weights_are_listed_once() -> None:
    names = [w.name for w in LLAMA.weights]
    assert len(names) == len(set(names))
    assert names[:3] == ["embed", "layers.0.attention_norm", "layers.0.qkv"]


def test_printer() -> None:
    text = format_program(LLAMA)
    lines = text.splitlines()
    assert len(lines) == len(LLAMA.ops) + 3  # title, header, totals
    assert lines[0].startswith("llama: ")
    assert "vocabulary 261" in lines[0]
    qkv = next(line for line in lines if "layers.1.qkv" in line)
    assert qkv.split()[:4] == ["10", "Linear", "layers.1.qkv", "[token,"]
    assert "160 x 96" in qkv
    assert "30.72 k" in qkv
    assert lines[-1].split()[0] == "total"
    assert all(line == line.rstrip() for line in lines)


def test_the_hidden_state_is_what_the_head_reads() -> None:
    assert LLAMA.head is not None
    assert LLAMA.head.x.name == "final"
    assert LLAMA.hidden_width == LLAMA.head.x.width
    assert fake_program(Fake(out=A)).hidden_width == 0
