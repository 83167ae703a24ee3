"""Inline PTX in the interpreter: each instruction is Python's integer arithmetic of the PTX manual."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st

from firelane.backends.cuda.device.launch import Launch
from tests.backends.cuda.interpreter_ptx import run_ptx

ALL = 0xFFFFFFFF
words = st.integers(0, ALL) | st.sampled_from([0, 1, 31, 32, 33, 0x7FFFFFFF, 0x80000000, ALL])


def _signed(a: int) -> int:
    return a - (1 << 32) if a >> 31 else a


def _permute(a: int, b: int, selector: int) -> int:
    sources = (b << 32 | a).to_bytes(8, "little")
    picked = []
    for i in range(4):
        nibble = selector >> 4 * i & 15
        byte = sources[nibble & 7]
        picked.append(0xFF * (byte >> 7) if nibble & 8 else byte)
    return int.from_bytes(bytes(picked), "little")


def _extract_signed(a: int, start: int, length: int) -> int:
    start, length = start & 255, length & 255
    sign = a >> min(start + length - 1, 31) & 1 if length else 0
    bits = [a >> start + i & 1 if i < length and start + i <= 31 else sign for i in range(32)]
    return sum(bit << i for i, bit in enumerate(bits))


def _extract(a: int, start: int, length: int) -> int:
    return a >> (start & 255) & (1 << (length & 255)) - 1


def _insert(a: int, b: int, start: int, length: int) -> int:
    mask = (1 << (length & 255)) - 1 << (start & 255)
    return b & ~mask | a << (start & 255) & mask


EXPECTED: dict[str, tuple[int, Callable[..., int]]] = {
    "mov.b32": (1, lambda a: a),
    "and.b32": (2, lambda a, b: a & b),
    "or.b32": (2, lambda a, b: a | b),
    "xor.b32": (2, lambda a, b: a ^ b),
    "not.b32": (1, lambda a: ~a),
    "shl.b32": (2, lambda a, b: a << min(b, 32)),
    "shr.u32": (2, lambda a, b: a >> min(b, 32)),
    "shr.b32": (2, lambda a, b: a >> min(b, 32)),
    "shr.s32": (2, lambda a, b: _signed(a) >> min(b, 32)),
    "add.u32": (2, lambda a, b: a + b),
    "add.s32": (2, lambda a, b: a + b),
    "sub.u32": (2, lambda a, b: a - b),
    "neg.s32": (1, lambda a: -a),
    "mul.lo.u32": (2, lambda a, b: a * b),
    "mul.hi.u32": (2, lambda a, b: a * b >> 32),
    "mad.lo.u32": (3, lambda a, b, c: a * b + c),
    "mad.lo.s32": (3, lambda a, b, c: a * b + c),
    "min.u32": (2, min),
    "max.u32": (2, max),
    "min.s32": (2, lambda a, b: min(_signed(a), _signed(b))),
    "max.s32": (2, lambda a, b: max(_signed(a), _signed(b))),
    "prmt.b32": (3, _permute),
    "shf.l.wrap.b32": (3, lambda a, b, c: (b << 32 | a) << (c & 31) >> 32),
    "shf.r.wrap.b32": (3, lambda a, b, c: (b << 32 | a) >> (c & 31)),
    "shf.l.clamp.b32": (3, lambda a, b, c: (b << 32 | a) << min(c, 32) >> 32),
    "shf.r.clamp.b32": (3, lambda a, b, c: (b << 32 | a) >> min(c, 32)),
    "bfe.u32": (3, _extract),
    "bfe.s32": (3, _extract_signed),
    "bfi.b32": (4, _insert),
    "popc.b32": (1, int.bit_count),
    "clz.b32": (1, lambda a: 32 - a.bit_length()),
}


@pytest.mark.parametrize("instruction", EXPECTED)
@given(values=st.lists(st.tuples(words, words, words, words), min_size=1, max_size=20))
def test_an_instruction_is_what_the_manual_says(instruction: str, values: list[tuple[int, ...]]) -> None:
    count, expected = EXPECTED[instruction]
    registers = {f"${i + 1}": np.array([row[i] for row in values], np.uint32) for i in range(4)}
    sources = ", ".join(f"${i + 1}" for i in range(count))
    run_ptx(f"{instruction} $0, {sources};", registers)
    assert registers["$0"].tolist() == [expected(*row[:count]) & ALL for row in values]


@given(a=words, b=words, c=words, table=st.integers(0, 255))
def test_lop3_looks_every_bit_up(a: int, b: int, c: int, table: int) -> None:
    registers = {name: np.array([v], np.uint32) for name, v in (("$1", a), ("$2", b), ("$3", c))}
    run_ptx(f"lop3.b32 $0, $1, $2, $3, {hex(table)};", registers)
    bits = [table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | c >> i & 1) & 1 for i in range(32)]
    assert registers["$0"].tolist() == [sum(bit << i for i, bit in enumerate(bits))]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("vset.u32.u32 $0, $1, $1, $1;", "vset.u32.u32 is not known"),
        ("mul.hi.s32 $0, $1, $1;", "mul.hi.s32 is not known"),
        ("add.f32 $0, $1, $1;", "not a 32-bit instruction"),
        ("add.u32 $0, $1, $1", "cannot read"),
        ("@p add.u32 $0, $1, $1;", "cannot read"),
    ],
)
def test_what_it_does_not_know_is_refused(text: str, message: str) -> None:
    with pytest.raises(NotImplementedError, match=message):
        run_ptx(text, {"$1": np.zeros(1, np.uint32)})


@triton.jit
def widen_kernel(low, high, out, N: tl.constexpr):
    """bf16 from bytes, four at a time: low byte and high byte."""
    at = tl.arange(0, N)
    value = tl.inline_asm_elementwise(
        asm="""
        {   // two registers out, each two values
            .reg .b32 t<2>;
            mov.b32 t0, $3;
            prmt.b32 $0, $2, t0, 0x5140;
            prmt.b32 $1, $2, t0, 0x7362;
        }
        """,
        constraints="=r,=r,r,r",
        args=[tl.load(low + at), tl.load(high + at)],
        dtype=tl.bfloat16,
        is_pure=True,
        pack=4,
    )
    tl.store(out + at, value)


def test_values_are_packed_into_registers_as_the_compiler_does() -> None:
    expected = torch.randn(64, generator=torch.Generator().manual_seed(0)).bfloat16()
    both = expected.view(torch.uint8).reshape(64, 2)
    out = torch.zeros_like(expected)
    low, high = both[:, 0].contiguous(), both[:, 1].contiguous()
    _run(widen_kernel, low=low, high=high, out=out, N=64)
    assert torch.equal(out, expected)


@triton.jit
def two_results_kernel(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    even, odd = tl.inline_asm_elementwise(
        asm="and.b32 $0, $2, 1; shr.u32 $1, $2, $3;",
        constraints="=r,=r,r,r",
        args=[tl.load(x + at), 1],
        dtype=(tl.int32, tl.int32),
        is_pure=True,
        pack=1,
    )
    tl.store(out + at, even)
    tl.store(out + N + at, odd)


def test_several_results_and_a_number_that_is_spread() -> None:
    x, out = torch.arange(16, dtype=torch.int32), torch.zeros(2, 16, dtype=torch.int32)
    _run(two_results_kernel, x=x, out=out, N=16)
    assert torch.equal(out, torch.stack([x & 1, x >> 1]))


def _run(kernel: Any, **arguments: Any) -> None:
    Launch(kernel=kernel, grid=(1,), arguments=arguments).run()


def test_float_instructions() -> None:
    """Each rounded as float32 is; of pairs of bf16 the second operand makes the lower half."""
    rng = np.random.default_rng(2)
    a, b = (np.ldexp(rng.standard_normal(200), rng.integers(-9, 9, 200)).astype(np.float32) for _ in "ab")
    registers = {"$1": a.view(np.uint32), "$2": b.view(np.uint32)}

    def run(text: str) -> np.ndarray:
        found = dict(registers)
        run_ptx(text, found)
        return found["$0"]

    for operation, wanted in (("add", a + b), ("sub", a - b), ("mul", a * b)):
        np.testing.assert_array_equal(run(f"{operation}.rn.f32 $0, $1, $2;").view(np.float32), wanted)
    np.testing.assert_array_equal(run("sub.rn.f32 $0, $1, 0f41000000;").view(np.float32), a - np.float32(8))
    pair = run("cvt.rn.bf16x2.f32 $0, $1, $2;").view(np.int16).reshape(-1, 2)
    rounded = [torch.from_numpy(x).bfloat16().view(torch.int16).numpy() for x in (b, a)]
    np.testing.assert_array_equal(pair, np.stack(rounded, axis=1))
    at_least = run("set.ge.u32.bf16x2 $0, $1, $2;").view(np.uint16).reshape(-1, 2)
    below = run("set.lt.u32.bf16x2 $0, $1, $2;").view(np.uint16).reshape(-1, 2)
    halves = [(x.view(np.uint16).reshape(-1, 2).astype(np.uint32) << 16).view(np.float32) for x in (a, b)]
    np.testing.assert_array_equal(at_least, np.where(halves[0] >= halves[1], 0xFFFF, 0))
    np.testing.assert_array_equal(below, np.where(halves[0] < halves[1], 0xFFFF, 0))
