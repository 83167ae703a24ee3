"""The coded form on the device: every weight that there can be is decoded to what it was made from."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from matrices_harness import bits_of, coded_matrix, no_escapes, random_bits

from firelane.backends.cuda.kernels.matmul.coded import decode_matrix
from firelane.backends.cuda.weights import coded_reference as reference
from firelane.backends.cuda.weights.matrices import CodedMatrix
from tests.backends.cuda.host_device import poison


def decoded(matrix: CodedMatrix) -> np.ndarray:
    scratch = poison(torch.empty(matrix.low.numel() + 7, dtype=torch.bfloat16))
    launch, plain = decode_matrix(matrix, scratch)
    launch.run()
    assert scratch[matrix.low.numel() :].isnan().all()
    assert (plain.rows, plain.k, plain.escapes) == (matrix.rows, matrix.k, matrix.escapes)
    return bits_of(plain.data)


def test_every_code_and_byte() -> None:
    """Row blocks with the bases 0, 1, 111 and 239; in each row of a block all bytes, with one code."""
    bases = np.array([0, 1, 111, 239], np.uint8)
    low = np.tile(np.arange(256, dtype=np.uint8), (256, 1))
    code = np.tile(np.arange(64, dtype=np.uint8) % 16, 4)[:, None]
    low[(code == 0)[:, 0]] &= 0x80  # as encoded: zeros have no mantissa
    codes = np.broadcast_to(code | (15 - code) << 4, (256, 128)).copy()
    low.reshape(256, 2, 2, 64)[:, :, 1][(code == 15)[:, 0]] &= 0x80
    matrix = CodedMatrix(
        low=torch.from_numpy(low),
        codes=torch.from_numpy(codes),
        bases=torch.from_numpy(bases),
        rows=256,
        k=256,
        escapes=no_escapes(torch.bfloat16, 256),
    )
    np.testing.assert_array_equal(decoded(matrix), reference.decode(low, codes, bases))


@pytest.mark.parametrize(("rows", "k"), [(72, 80), (64, 640), (130, 1100)])
def test_decodes_what_was_encoded(rows: int, k: int) -> None:
    bits = random_bits(rows, k, seed=k)
    matrix = coded_matrix([bits])
    found = decoded(matrix)
    starts, where, values = (t for t in (matrix.escapes.starts, matrix.escapes.where, matrix.escapes.values))
    whole = reference.join(found, starts.numpy(), where.numpy(), bits_of(values))
    np.testing.assert_array_equal(whole[:rows, :k], bits)
    assert not found[rows:].any()
    assert not found[:, k:].any()
