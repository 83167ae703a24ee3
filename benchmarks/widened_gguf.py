"""A Llama model made wider, which computes the same: a large model that answers like a small one.

    widened_gguf.py SOURCE FILE [--hidden 1536] [--heads 24] [--kv-heads 8] [--inner 6144]

SOURCE and FILE are GGUF files. From SmolLM2-135M it makes a model of 1.1 B parameters in bf16, for benchmarks
of speculative decoding: what is drafted and accepted follows from the answers, which those of random weights
are not like. New channels of the residual stream stay zero: only weights that read them, or whose results
nothing reads, are random. Norms are scaled by what the mean over more channels loses.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float32]
SPREAD = 0.02
"""Standard deviation of the weights that nothing depends on."""


@dataclass(frozen=True)
class Sizes:
    hidden: int
    heads: int
    kv_heads: int
    inner: int
    head: int
    before: int
    """Channels of the residual stream in the source."""

    @property
    def norm_scale(self) -> float:
        return (self.before / self.hidden) ** 0.5

    def fields(self) -> dict[str, int]:
        return {
            "llama.embedding_length": self.hidden,
            "llama.feed_forward_length": self.inner,
            "llama.attention.head_count": self.heads,
            "llama.attention.head_count_kv": self.kv_heads,
            "llama.attention.key_length": self.head,
            "llama.attention.value_length": self.head,
        }


class Widening:
    """Makes each tensor of the wide model from that of the source."""

    def __init__(self, sizes: Sizes) -> None:
        self._sizes, self._draw = sizes, np.random.default_rng(1)

    def widen(self, name: str, tensor: Matrix) -> Matrix:
        """Raises SystemExit for a tensor that is not Llama's."""
        part = name.split(".")[-2]
        if tensor.ndim == 1:
            return self._norm(tensor)
        rules: dict[str, Callable[[Matrix], Matrix]] = {
            "token_embd": lambda w: self._quiet(w, len(w), self._sizes.hidden),
            "output": lambda w: self._reading(w, len(w)),
            "attn_q": lambda w: self._reading(w, self._sizes.heads * self._sizes.head),
            "attn_k": lambda w: self._reading(w, self._sizes.kv_heads * self._sizes.head),
            "attn_v": lambda w: self._reading(w, self._sizes.kv_heads * self._sizes.head),
            "attn_output": lambda w: self._quiet(w, self._sizes.hidden, self._sizes.heads * self._sizes.head),
            "ffn_gate": lambda w: self._reading(w, self._sizes.inner),
            "ffn_up": lambda w: self._reading(w, self._sizes.inner),
            "ffn_down": lambda w: self._quiet(w, self._sizes.hidden, self._sizes.inner),
        }
        if part not in rules:
            raise SystemExit(f"{name}: only models of Llama's kind are widened")
        return rules[part](tensor)

    def _norm(self, weight: Matrix) -> Matrix:
        wide = np.ones(self._sizes.hidden, np.float32)
        wide[: len(weight)] = weight * self._sizes.norm_scale
        return wide

    def _reading(self, weight: Matrix, rows: int) -> Matrix:
        """Reads the residual stream: new channels are zero there, and nothing reads new rows."""
        wide = self._draw.normal(0.0, SPREAD, (rows, self._sizes.hidden)).astype(np.float32)
        wide[: weight.shape[0], : weight.shape[1]] = weight
        return wide

    @staticmethod
    def _quiet(weight: Matrix, rows: int, columns: int) -> Matrix:
        """Adds nothing to new channels, and nothing of new columns."""
        wide = np.zeros((rows, columns), np.float32)
        wide[: weight.shape[0], : weight.shape[1]] = weight
        return wide


def sizes_of(reader: Any, args: argparse.Namespace) -> Sizes:
    def number(name: str) -> int:
        return int(reader.fields[f"llama.{name}"].contents())

    hidden, heads = number("embedding_length"), number("attention.head_count")
    kv_heads = number("attention.head_count_kv")
    if heads // kv_heads != args.heads // args.kv_heads or args.heads % args.kv_heads:
        raise SystemExit(f"--heads and --kv-heads: {heads // kv_heads} heads share one, as in the source")
    return Sizes(args.hidden, args.heads, args.kv_heads, args.inner, hidden // heads, hidden)


def copy_fields(reader: Any, writer: Any, sizes: Sizes) -> None:
    import gguf

    for name, value in sizes.fields().items():
        writer.add_uint32(name, value)
    left_out = {"general.architecture", "general.file_type", "general.quantization_version"}
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in left_out or field.name in sizes.fields():
            continue
        kind = field.types[0]
        of = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub_type=of)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)


def add_tensor(writer: Any, name: str, tensor: Matrix) -> None:
    """Matrices in bf16, vectors in float32."""
    import gguf

    if tensor.ndim == 1:
        writer.add_tensor(name, tensor)
        return
    kind = gguf.GGMLQuantizationType.BF16
    writer.add_tensor(name, gguf.quants.quantize(tensor, kind), raw_dtype=kind)


def widen(source: Path, file: Path, args: argparse.Namespace) -> None:
    import gguf

    reader = gguf.GGUFReader(source)
    sizes = sizes_of(reader, args)
    widening, writer = Widening(sizes), gguf.GGUFWriter(file, "llama")
    copy_fields(reader, writer, sizes)
    for tensor in reader.tensors:
        plain = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        add_tensor(writer, tensor.name, widening.widen(tensor.name, plain))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--hidden", type=int, default=1536)
    parser.add_argument("--heads", type=int, default=24)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--inner", type=int, default=6144)
    args = parser.parse_args()
    widen(args.source, args.file, args)


if __name__ == "__main__":
    main()
