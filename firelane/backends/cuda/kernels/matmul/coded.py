"""The coded form on its way into a product: four weights a register, about three integer instructions a
weight; and the decode of a whole matrix for a product with many rows."""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportArgumentType=false
# (what a triton.jit function takes are blocks and pointers of the device's language, not Python's types)

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from firelane.backends.cuda.device.launch import Launch
from firelane.backends.cuda.device.shapes import K_TILE, ROW_BLOCK
from firelane.backends.cuda.kernels.matmul.operands import matrix_operand
from firelane.backends.cuda.weights.matrices import CodedMatrix, PlainMatrix

_ROW_BLOCK = tl.constexpr(ROW_BLOCK)
_TILES = 4  # of a row block, decoded by one program

# Four bytes at once. n: 1 where the code is not 0, so that e is 0 for code 0 and base + code else; no byte
# carries into the next one. A bf16's upper byte is its sign and e >> 1, the lower one e's last bit and the
# mantissa: lop3 with 0xe4 takes the bits of its first operand where the third has ones, else of the second.
_DECODE = """
    and.b32 c, c, 0x0f0f0f0f;
    add.u32 n, c, 0x0f0f0f0f;
    shr.b32 n, n, 4;
    and.b32 n, n, 0x01010101;
    mad.lo.u32 e, n, $4, c;
    shr.b32 h, e, 1;
    lop3.b32 h, $2, h, 0x80808080, 0xe4;
    shl.b32 l, e, 7;
    lop3.b32 l, l, $2, 0x80808080, 0xe4;
    prmt.b32 $0, l, h, 0x5140;
    prmt.b32 $1, l, h, 0x7362;
}
"""
_DECODE_LOWER = tl.constexpr("{\n    .reg .b32 c, n, e, h, l;\n    mov.b32 c, $3;" + _DECODE)
_DECODE_UPPER = tl.constexpr("{\n    .reg .b32 c, n, e, h, l;\n    shr.b32 c, $3, 4;" + _DECODE)


@triton.jit
def decode_lower(low, codes, base):
    """bf16, shaped as `low`: weights whose codes are the lower halves of `codes`. base: int32, a scalar."""
    return tl.inline_asm_elementwise(
        _DECODE_LOWER, "=r,=r,r,r,r,r,r,r", [low, codes, base], dtype=tl.bfloat16, is_pure=True, pack=4
    )


@triton.jit
def decode_upper(low, codes, base):
    """The same with the upper halves of `codes`."""
    return tl.inline_asm_elementwise(
        _DECODE_UPPER, "=r,=r,r,r,r,r,r,r", [low, codes, base], dtype=tl.bfloat16, is_pure=True, pack=4
    )


@triton.jit
def decode_matrix_kernel(matrix, out, TILES: tl.constexpr, HALF: tl.constexpr):
    """A row block's TILES tiles of inputs."""
    block = tl.program_id(1)
    base = tl.load(matrix.bases + block).to(tl.int32)
    rows = (tl.arange(0, _ROW_BLOCK) + block * _ROW_BLOCK).to(tl.int64)[:, None]
    half = tl.arange(0, HALF)[None, :]
    first = tl.program_id(0) * TILES
    for tile in range(first, min(first + TILES, matrix.k_tiles)):
        code = tl.load(matrix.codes + rows * (matrix.k_tiles * HALF) + half + tile * HALF)
        at = rows * (matrix.k_tiles * (2 * HALF)) + half + tile * (2 * HALF)
        tl.store(out + at, decode_lower(tl.load(matrix.data + at), code, base))
        tl.store(out + at + HALF, decode_upper(tl.load(matrix.data + at + HALF), code, base))


def decode_matrix(matrix: CodedMatrix, out: Tensor) -> tuple[Launch, PlainMatrix]:
    """The launch that writes `matrix` in its plain form, escapes apart as ever, and what it is then.

    out: bf16, contiguous, at least padded rows * padded k elements; the plain matrix lies in it.
    """
    rows, k = matrix.low.shape
    data = out.view(-1)[: rows * k].view(rows, k)
    launch = Launch(
        kernel=decode_matrix_kernel,
        grid=(-(-k // (K_TILE * _TILES)), rows // ROW_BLOCK),
        arguments={"matrix": matrix_operand(matrix), "out": data, "TILES": _TILES, "HALF": K_TILE // 2},
        warps=4,
        stages=2,
    )
    return launch, PlainMatrix(data=data, rows=matrix.rows, k=matrix.k, escapes=matrix.escapes)
