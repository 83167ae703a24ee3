"""bf16 bits <-> a byte of sign and mantissa and a byte of exponent for each weight.

A weight s eeeeeeee mmmmmmm turned left by one bit is eeeeeeee mmmmmmms: the upper byte is the exponent, the
lower one (mantissa << 1 | sign). The functions with `reference` in their name are NumPy's, the others run
compiled code where there is a compiler (weights/formats/native.py) and are the reference where there is none.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from firelane.weights.formats.native import codec_library

Bits = NDArray[np.uint16]
Bytes = NDArray[np.uint8]


def split(bits: Bits, sign_mantissa: Bytes, exponent: Bytes) -> None:
    """bits [n] into the planes [n] each."""
    library = codec_library()
    (library.split if library is not None else split_reference)(bits, sign_mantissa, exponent)


def merge(sign_mantissa: Bytes, exponent: Bytes, bits: Bits) -> None:
    """The planes [n] into bits [n]; the inverse of split."""
    library = codec_library()
    (library.merge if library is not None else merge_reference)(sign_mantissa, exponent, bits)


def count_exponents(bits: Bits) -> NDArray[np.int64]:
    """Counts of how often each exponent stands in bits [n]: int64 [256]."""
    library = codec_library()
    if library is None:
        return count_exponents_reference(bits)
    counts = np.zeros(256, np.int64)
    library.count(bits, counts)
    return counts


def split_reference(bits: Bits, sign_mantissa: Bytes, exponent: Bytes) -> None:
    turned = (bits << np.uint16(1)) | (bits >> np.uint16(15))
    sign_mantissa[:] = turned.astype(np.uint8)
    exponent[:] = turned >> np.uint16(8)


def merge_reference(sign_mantissa: Bytes, exponent: Bytes, bits: Bits) -> None:
    turned = (exponent.astype(np.uint16) << np.uint16(8)) | sign_mantissa
    bits[:] = (turned >> np.uint16(1)) | (turned << np.uint16(15))


def count_exponents_reference(bits: Bits) -> NDArray[np.int64]:
    exponents = ((bits >> np.uint16(7)) & np.uint16(255)).astype(np.uint8)
    return np.bincount(exponents, minlength=256).astype(np.int64)
