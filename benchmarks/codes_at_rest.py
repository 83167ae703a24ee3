"""Quantised weights at rest: what an entropy coder would save of their codes and scales.

    python benchmarks/codes_at_rest.py MODEL [--formats int8 int4-g32 int4-g128] [--weights 33554432]

Matrices of MODEL, a plain checkpoint, are quantised as `firelane quantize` does, up to so many weights.
Codes lie in bytes as they are stored (two of four bits in one), scales as the two bytes of bf16. Bits a
weight: as stored; what the entropy of each matrix's codes, and of the bytes of its scales, allows; and with
Huffman codes for the bytes, the coder of the lossless form's exponents, in chunks of 256 KiB. Speed of one
core, best of three.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from firelane.bench.table import format_table
from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from firelane.program.recipes import widened
from firelane.program.values import DType
from firelane.weights.checkpoints.checkpoint import Checkpoint
from firelane.weights.checkpoints.fitting import fitted
from firelane.weights.lossless.chunks import PARAMETERS
from firelane.weights.lossless.report import entropy_bits
from firelane.weights.lossless.zstd import zstd
from firelane.weights.quantizing.native import quantize_library
from firelane.weights.quantizing.parts import quantize_rows
from firelane.weights.quantizing.schemes import SCHEMES, Scheme
from firelane.weights.quantizing.targets import find_targets

CHUNK = 256 << 10
REPEATS = 3
Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Figures:
    stored: float
    entropy: float
    coded: float
    encode_gbps: float
    decode_gbps: float


def matrices(model: Path, most: int) -> Iterator[NDArray[np.float32]]:
    checkpoint = Checkpoint.open(model)
    program = fitted(load_program(read_config(model), dtype=DType.BF16), checkpoint, rounds=True)
    for name in find_targets(program).tensors:
        values = widened(checkpoint.tensor(name))
        if most <= 0 or values.ndim != 2:
            return
        most -= values.size
        yield values


def planes(values: NDArray[np.float32], scheme: Scheme) -> tuple[float, list[Bytes], int]:
    """The entropy of a matrix in bits, its bytes by what they are, and how many it takes."""
    parts = quantize_rows(values, scheme, quantize_library()).parts
    codes = np.ascontiguousarray(parts["weight_packed"]).view(np.uint8).reshape(-1)
    scales = np.ascontiguousarray(parts["weight_scale"]).view(np.uint8).reshape(-1)
    single = [codes & 15, codes >> 4] if scheme.bits == 4 else [codes]
    halves = [scales[0::2].copy(), scales[1::2].copy()]
    counts = [np.bincount(plane, minlength=256) for plane in (np.concatenate(single), *halves)]
    bits = sum(float(c.sum()) * entropy_bits(c) for c in counts)
    return bits, [codes, *halves], codes.nbytes + scales.nbytes


def measure(found: Sequence[NDArray[np.float32]], scheme: Scheme) -> Figures:
    entropy, stored, coded, seconds = 0.0, 0, 0, np.zeros(2)
    for values in found:
        bits, bytes_, size = planes(values, scheme)
        entropy += bits
        stored += size
        for plane in bytes_:
            nbytes, took = _coded(plane)
            coded += min(nbytes, plane.nbytes)
            seconds += took
    weights = sum(values.size for values in found)
    speeds = stored / seconds / 1e9
    return Figures(8 * stored / weights, entropy / weights, 8 * coded / weights, *speeds.tolist())


def _coded(plane: Bytes) -> tuple[int, NDArray[np.float64]]:
    """Bytes, and seconds of encoding and of decoding."""
    chunks = [plane[at : at + CHUNK].tobytes() for at in range(0, len(plane), CHUNK)]
    best = np.full(2, np.inf)
    encoded: list[bytes] = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        encoded = [
            zstd.ZstdCompressor(options=PARAMETERS).compress(c, zstd.ZstdCompressor.FLUSH_FRAME)
            for c in chunks
        ]
        between = time.perf_counter()
        for data in encoded:
            zstd.decompress(data)
        best = np.minimum(best, [between - began, time.perf_counter() - between])
    return sum(map(len, encoded)), best


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--formats", nargs="+", default=["int8", "int4-g32", "int4-g128"])
    parser.add_argument("--weights", type=int, default=32 << 20)
    arguments = parser.parse_args()
    found = list(matrices(arguments.model, arguments.weights))
    rows: list[list[str]] = []
    for name in arguments.formats:
        f = measure([m for m in found if SCHEMES[name].fits(m.shape[1])], SCHEMES[name])
        gain = 1 - f.coded / f.stored
        bits = [f"{f.stored:.3f}", f"{f.entropy:.3f}", f"{f.coded:.3f}"]
        rows.append([name, *bits, f"{gain:.1%}", f"{f.encode_gbps:.2f}", f"{f.decode_gbps:.2f}"])
    header = ["format", "bits as stored", "entropy", "Huffman", "gain", "encode, GB/s", "decode, GB/s"]
    print(format_table(header, rows))


if __name__ == "__main__":
    main()
