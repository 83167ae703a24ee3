"""Matrices for tests, on the CPU: the same weights plain and in the coded form, with escapes of every kind.

bits = random_bits(rows, k, seed=1)            # uint16 [rows, k], the true weights
plain_matrix([bits]), coded_matrix([bits])    # both without their escapes, with the same lists
plain_matrix([gate, up])                       # GatedLinear: each part is padded by itself
true_values(bits)                              # float32, what a product has to use
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from firelane.backends.cuda.device.shapes import K_TILE, ROW_BLOCK, round_up
from firelane.backends.cuda.weights import coded_reference as reference
from firelane.backends.cuda.weights.matrices import CodedMatrix, Escapes, PlainMatrix
from tests.weights.files import to_bf16

Bits = np.ndarray  # uint16, bits of bf16
DENORMAL, NEGATIVE_ZERO = 0x0003, 0x8000


def random_bits(rows: int, k: int, *, seed: int = 0, scale: float = 0.05, share: float = 0.002) -> Bits:
    """Normal weights; of `share` of all each: zeros, negative zeros; and of half as many values that are far
    too large, far too small and denormal: escapes, less than a matrix may have."""
    rng = np.random.default_rng(seed)
    bits = to_bf16(rng.standard_normal((rows, k)) * scale)

    def some(part: float) -> np.ndarray:
        return rng.random((rows, k)) < part

    bits[some(share)] = 0
    bits[some(share)] = NEGATIVE_ZERO
    for odd in (scale * 300, scale * 2e-7):
        at = some(share / 2)
        bits[at] = to_bf16(odd * (1 + rng.random((rows, k))))[at] | (bits[at] & 0x8000)
    bits[some(share / 8)] = DENORMAL
    return bits


def true_values(bits: Bits) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def padded(parts: Sequence[np.ndarray]) -> np.ndarray:
    """The parts below each other, each padded to whole blocks of rows, and to whole tiles of inputs."""
    k = round_up(parts[0].shape[1], K_TILE)
    return np.concatenate(
        [np.pad(p, ((0, -len(p) % ROW_BLOCK), (0, k - p.shape[1]))) for p in parts],
    )


def plain_matrix(parts: Sequence[Bits]) -> PlainMatrix:
    """With a range: AssertionError where these weights have none."""
    split = _split(parts)
    return PlainMatrix(
        data=bf16(split.bits), rows=_rows(parts), k=parts[0].shape[1], escapes=escapes_of(split)
    )


def coded_matrix(parts: Sequence[Bits]) -> CodedMatrix:
    split = _split(parts)
    low, codes = reference.encode(split.bits, split.bases)
    return CodedMatrix(
        low=torch.from_numpy(low),
        codes=torch.from_numpy(codes),
        bases=torch.from_numpy(split.bases),
        rows=_rows(parts),
        k=parts[0].shape[1],
        escapes=escapes_of(split),
    )


def uncoded_matrix(parts: Sequence[np.ndarray]) -> PlainMatrix:
    """Build a matrix from the bits of bf16 or of float32 numbers, with every weight in its place."""
    data = padded(parts)
    tensor = torch.from_numpy(data) if data.dtype == np.float32 else bf16(data)
    return PlainMatrix(
        data=tensor, rows=_rows(parts), k=parts[0].shape[1], escapes=no_escapes(tensor.dtype, len(data))
    )


def no_escapes(dtype: torch.dtype, padded_rows: int) -> Escapes:
    return Escapes(
        starts=torch.zeros(padded_rows // ROW_BLOCK + 1, dtype=torch.int32),
        where=torch.zeros(1, dtype=torch.int32),
        values=torch.zeros(1, dtype=dtype),
    )


def escapes_of(split: reference.SplitMatrix) -> Escapes:
    spare = 0 if len(split.where) else 1
    return Escapes(
        starts=torch.from_numpy(split.starts),
        where=torch.from_numpy(np.pad(split.where, (0, spare))),
        values=bf16(np.pad(split.values, (0, spare))),
    )


def bf16(bits: Bits) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(bits).view(np.int16)).view(torch.bfloat16)


def bits_of(tensor: torch.Tensor) -> Bits:
    return tensor.view(torch.int16).numpy().view(np.uint16)


def original_bits(matrix: PlainMatrix | CodedMatrix) -> Bits:
    """The true weights of a bf16 matrix again, padding included."""
    if isinstance(matrix, PlainMatrix):
        left = bits_of(matrix.data)
    else:
        left = reference.decode(matrix.low.numpy(), matrix.codes.numpy(), matrix.bases.numpy())
    e = matrix.escapes
    return reference.join(left, e.starts.numpy(), e.where.numpy(), bits_of(e.values))


def _split(parts: Sequence[Bits]) -> reference.SplitMatrix:
    split = reference.split(padded(parts))
    assert split is not None, "these weights have no range"
    return split


def _rows(parts: Sequence[np.ndarray]) -> int:
    return sum(len(p) for p in parts)
