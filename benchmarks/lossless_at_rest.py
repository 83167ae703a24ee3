"""Lossless weights at rest: size, and speed of one core, beside zstd and the entropy."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from entropy_coders import best_s
from lossless_figures import AtRest, Coder, Conditions
from numpy.typing import NDArray

from firelane.weights.checkpoints.checkpoint import Checkpoint
from firelane.weights.lossless.codec import decode, encode
from firelane.weights.lossless.pack import pack
from firelane.weights.lossless.planes import count_exponents
from firelane.weights.lossless.report import entropy_bits
from firelane.weights.lossless.zstd import zstd
from firelane.weights.storage.files import weight_files

SAMPLE_WEIGHTS = 32 << 20  # at most; zstd -19 gets one sixteenth of them
RAW_BITS = 8  # sign and mantissa
Bits = NDArray[np.uint16]


def measure_at_rest(model_dir: Path, packed_dir: Path, *, repeats: int) -> AtRest:
    """Packs `model_dir` into `packed_dir`, which is new, in one thread. What is packed already raises
    UsageError."""
    began_s = time.process_time()
    packed = pack(model_dir, packed_dir, threads=1)
    pack_s = time.process_time() - began_s
    checkpoint = Checkpoint.open(model_dir)
    sample = sample_of(checkpoint, SAMPLE_WEIGHTS)
    weights, limit_bits = entropy_limit(checkpoint)
    nbytes = packed.original_bytes
    decode_s = decode_files_s(packed_dir, repeats)
    return AtRest(
        conditions=Conditions.now(),
        weights=weights,
        original_bytes=nbytes,
        packed_bytes=packed.packed_bytes,
        limit_bits=limit_bits,
        command_pack_gbps=nbytes / pack_s / 1e9,
        file_decode_gbps=nbytes / decode_s / 1e9,
        coders=[own_coder(sample, repeats), *(zstd_coder(level, sample) for level in (1, 3, 19))],
    )


def bf16_names(checkpoint: Checkpoint) -> list[str]:
    return [name for name in checkpoint.names if checkpoint.tensor(name).dtype == np.uint16]


def entropy_limit(checkpoint: Checkpoint) -> tuple[int, float]:
    """Weights in bf16 tensors, and the bits that one of them takes where each tensor's exponents have a
    perfect code of their own and the other bits are as random as they look."""
    weights, bits = 0, 0.0
    for name in bf16_names(checkpoint):
        tensor = checkpoint.tensor(name).reshape(-1)
        weights += len(tensor)
        bits += len(tensor) * (RAW_BITS + entropy_bits(count_exponents(tensor)))
    return weights, bits / max(weights, 1)


def sample_of(checkpoint: Checkpoint, most: int) -> Bits:
    """Whole tensors in order, and a part of the last, up to `most` weights."""
    parts: list[Bits] = []
    left = most
    for name in bf16_names(checkpoint):
        parts.append(checkpoint.tensor(name).reshape(-1)[:left])
        left -= len(parts[-1])
        if left == 0:
            break
    return np.concatenate(parts)


def decode_files_s(packed_dir: Path, repeats: int) -> float:
    """Seconds of one thread for all tensors, chunk checksums checked, from the page cache: the best."""
    for path in weight_files(packed_dir):
        with path.open("rb") as file:
            while file.read(8 << 20):
                pass
    checkpoint = Checkpoint.open(packed_dir)

    def decode_all() -> None:
        for name in checkpoint.names:
            checkpoint.tensor(name)

    return best_s(decode_all, repeats)


def own_coder(sample: Bits, repeats: int) -> Coder:
    encoded = encode(sample)
    np.testing.assert_array_equal(decode(encoded), sample)
    return coder(
        "Firelane's codec, checksums included",
        sample,
        encoded.nbytes,
        times_s=[best_s(lambda: encode(sample), repeats), best_s(lambda: decode(encoded), repeats)],
    )


def zstd_coder(level: int, sample: Bits) -> Coder:
    """zstd on the bytes as they are, without checksums, in one piece."""
    part = sample[: len(sample) // 16] if level > 3 else sample
    data = part.view(np.uint8).data
    began_s = time.perf_counter()
    frame = zstd.compress(data, level)
    pack_s = time.perf_counter() - began_s
    return coder(
        f"zstd -{level} on the bf16 bytes",
        part,
        len(frame),
        times_s=[pack_s, best_s(lambda: zstd.decompress(frame), 2)],
    )


def coder(name: str, bits: Bits, nbytes: int, *, times_s: Sequence[float]) -> Coder:
    pack_gbps, unpack_gbps = (bits.nbytes / t / 1e9 if t else math.nan for t in times_s)
    return Coder(name=name, bits=8 * nbytes / len(bits), pack_gbps=pack_gbps, unpack_gbps=unpack_gbps)
