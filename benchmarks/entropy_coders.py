"""Entropy coders for the exponents of bf16 weights: size, and speed of one core in bytes of bf16.

    python benchmarks/entropy_coders.py [--weights 16777216] [--repeats 3]

Each coder packs chunks of 131072 weights. "exponents": it gets the plane of exponents alone, the plane of
signs and mantissas stays raw (8 bits), and splitting and merging the planes is part of the time; "bf16": it
gets the weights as they are. Coders of packages that are not installed (isal, zlib-ng) are
left out. The last rows are Firelane's own encode and decode, checksums included, and checksums alone. Best
of the repeats.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import platform
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from firelane.bench.table import format_table
from firelane.native.machine import cpu_identity
from firelane.sources.resolve import EMBEDDED
from firelane.weights.checkpoints.checkpoint import Checkpoint
from firelane.weights.lossless import planes
from firelane.weights.lossless.chunks import PARAMETERS
from firelane.weights.lossless.codec import decode, encode
from firelane.weights.lossless.report import entropy_bits
from firelane.weights.lossless.zstd import zstd

CHUNK = 1 << 17
HEADER = ("coder", "input", "bits a weight", "of bf16", "encode, GB/s", "decode, GB/s")
CHECKSUMS: dict[str, Callable[[Any], object]] = {
    "CRC-32 (zlib)": zlib.crc32,
    "XXH3-64 (xxhash)": xxhash.xxh3_64_intdigest,
    "SHA-256 (hashlib)": lambda data: hashlib.sha256(data).digest(),
}
LITERAL_COMPRESSION = 1002  # ZSTD_c_literalCompressionMode; 1 is always
OPTION = zstd.CompressionParameter


@dataclass(frozen=True)
class Coder:
    """compress(bytes-like) -> bytes, decompress(bytes, size) -> bytes."""

    name: str
    compress: Callable[[Any], bytes]
    decompress: Callable[[bytes, int], bytes]


def zstd_with(name: str, options: dict[int, int]) -> Coder:
    return Coder(name, zstd_compress(options), zstd_decompress)


def zstd_compress(options: dict[int, int]) -> Callable[[Any], bytes]:
    compressor = zstd.ZstdCompressor(options=options)

    def compress(data: Any) -> bytes:
        compressor.set_pledged_input_size(len(data))
        return compressor.compress(data, compressor.FLUSH_FRAME)

    return compress


def zstd_decompress(data: bytes, _: int) -> bytes:
    return zstd.decompress(data)


def huffman_only(name: str, module: Any) -> Coder:
    """A zlib-like module's Huffman stage, without matches."""

    def compress(data: Any) -> bytes:
        stream = module.compressobj(1, zlib.DEFLATED, -15, 9, zlib.Z_HUFFMAN_ONLY)
        return stream.compress(data) + stream.flush()

    return Coder(name, compress, lambda data, size: module.decompress(data, -15, size))


def exponent_coders() -> Iterator[Coder]:
    yield zstd_with("zstd fast, 7-byte matches, 64-entry hash (chosen)", PARAMETERS)
    yield zstd_with("the same, 1024-entry hash", {**PARAMETERS, OPTION.hash_log: 10})
    yield zstd_with("the same, 1 KiB window (1 KiB blocks)", {**PARAMETERS, OPTION.window_log: 10})
    yield zstd_with("zstd dfast, 7-byte matches", {**PARAMETERS, OPTION.strategy: zstd.Strategy.dfast})
    for level in (1, 3, 19):
        yield zstd_with(f"zstd -{level}", {OPTION.compression_level: level})
    literals = {OPTION.compression_level: -131072, LITERAL_COMPRESSION: 1}
    yield zstd_with("zstd, literals only (experimental setting)", literals)
    yield huffman_only("zlib, Huffman only", zlib)
    isal, zlib_ng = (optional(name) for name in ("isal.isal_zlib", "zlib_ng.zlib_ng"))
    if isal is not None:
        coder = huffman_only("", zlib)
        yield Coder(
            "zlib, Huffman only, read by isal", coder.compress, lambda d, n: isal.decompress(d, -15, n)
        )
        yield Coder("isal -1", lambda d: isal.compress(d, 1, -15), lambda d, n: isal.decompress(d, -15, n))
    if zlib_ng is not None:
        yield huffman_only("zlib-ng, Huffman only", zlib_ng)


def optional(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def best_s(work: Callable[[], object], repeats: int) -> float:
    def once() -> float:
        began_s = time.perf_counter()
        work()
        return time.perf_counter() - began_s

    return min(once() for _ in range(repeats))


def row(name: str, kind: str, sizes: tuple[int, int], times_s: tuple[float, float]) -> list[str]:
    nbytes, packed = sizes
    speeds = [f"{nbytes / t / 1e9:.2f}" for t in times_s]
    return [name, kind, f"{16 * packed / nbytes:.3f}", f"{packed / nbytes:.4f}", *speeds]


def measure_planes(coder: Coder, bits: np.ndarray, repeats: int) -> list[str]:
    chunks = [bits[at : at + CHUNK] for at in range(0, len(bits), CHUNK)]
    low, high, out = np.empty(CHUNK, np.uint8), np.empty(CHUNK, np.uint8), np.empty(CHUNK, np.uint16)

    def encode_all() -> list[bytes]:
        frames: list[bytes] = []
        for c in chunks:
            planes.split(c, low[: len(c)], high[: len(c)])
            frames.append(coder.compress(high[: len(c)].data))
        return frames

    frames = encode_all()

    def decode_all() -> None:
        for c, frame in zip(chunks, frames, strict=True):
            content = np.frombuffer(coder.decompress(frame, len(c)), np.uint8)
            planes.merge(low[: len(c)], content, out[: len(c)])

    decode_all()
    np.testing.assert_array_equal(out[: len(chunks[-1])], chunks[-1])
    sizes = (bits.nbytes, len(bits) + sum(map(len, frames)))
    return row(coder.name, "exponents", sizes, (best_s(encode_all, repeats), best_s(decode_all, repeats)))


def measure_plain(level: int, bits: np.ndarray, repeats: int) -> list[str]:
    compress = zstd_compress({OPTION.compression_level: level})
    chunks = [bits[at : at + CHUNK].data for at in range(0, len(bits), CHUNK)]
    frames = [compress(c) for c in chunks]
    times_s = (
        best_s(lambda: [compress(c) for c in chunks], repeats),
        best_s(lambda: [zstd.decompress(f) for f in frames], repeats),
    )
    return row(f"zstd -{level}", "bf16", (bits.nbytes, sum(map(len, frames))), times_s)


def measure_own(bits: np.ndarray, repeats: int) -> list[str]:
    encoded = encode(bits)
    np.testing.assert_array_equal(decode(encoded), bits)
    times_s = (best_s(lambda: encode(bits), repeats), best_s(lambda: decode(encoded), repeats))
    return row("firelane.weights.lossless", "bf16", (bits.nbytes, encoded.nbytes), times_s)


def table(bits: np.ndarray, repeats: int) -> str:
    rows = [measure_planes(coder, bits, repeats) for coder in exponent_coders()]
    rows += [measure_plain(level, bits, 1) for level in (1, 3, 19)]
    rows.append(measure_own(bits, repeats))
    for name, digest in CHECKSUMS.items():
        rows.append(
            [
                name,
                "bf16",
                "",
                "",
                "",
                f"{bits.nbytes / best_s(lambda d=digest: d(bits.data), repeats) / 1e9:.1f}",
            ]
        )
    return format_table(HEADER, rows)


def random_weights(count: int) -> np.ndarray:
    values = np.random.default_rng(0).standard_normal(count, np.float32) * np.float32(0.02)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def embedded_weights() -> np.ndarray:
    checkpoint = Checkpoint.open(EMBEDDED)
    return np.concatenate([checkpoint.tensor(name).reshape(-1) for name in checkpoint.names])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--weights", type=int, default=1 << 24, help="of the random model")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    cpu = cpu_identity()
    print(f"{cpu.model}, {platform.machine()}; zstd {zstd.zstd_version}")
    for name, bits in (("random normal", random_weights(options.weights)), ("embedded", embedded_weights())):
        entropy = entropy_bits(planes.count_exponents(bits))
        print(f"\n{name}: {len(bits)} weights, {entropy:.3f} bits of entropy in an exponent\n")
        print(table(bits, options.repeats))


if __name__ == "__main__":
    main()
