"""Figures that others published about their lossless forms of bf16 weights; none of it was measured here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Published:
    """bits_at_rest, bits_in_memory: of a weight, over the whole model, None where nothing is said; speed: of
    generation against bf16 weights, on the named device."""

    name: str
    method: str
    bits_at_rest: float | None
    bits_in_memory: float | None
    speed: str
    source: str


PUBLISHED = (
    Published(
        name="DFloat11",
        method="Huffman codes, bf16 matrices rebuilt in GPU memory a block of layers at a time",
        bits_at_rest=16 * 0.678,
        bits_in_memory=16 * 0.678,
        speed='"approximately 2x slower" at batch 1, less at larger ones',
        source="Zhang et al., arXiv 2504.11651 (Llama 3.1 8B: 67.8%); speed: the project's README, "
        "github.com/LeanModels/DFloat11",
    ),
    Published(
        name="ZipServ",
        method="fixed length: ranges of 7 exponents, decoded in registers of the matrix product",
        bits_at_rest=None,
        bits_in_memory=16 * 0.70,
        speed="1.22x of vLLM on average, products up to 2.21x of cuBLAS",
        source='Fan et al., arXiv 2603.17435 (ASPLOS 2026), abstract: "up to 30%" smaller',
    ),
    Published(
        name="Unweight",
        method="MLP matrices only: Huffman codes over a palette of 16, four ways to decode",
        bits_at_rest=16 * 0.78,
        bits_in_memory=16 * 0.87,
        speed="30 to 40% less throughput on H100, less of a loss at larger batches",
        source="Cloudflare, blog.cloudflare.com/unweight-tensor-compression, 2026-04-17 (Llama 3.1 8B: "
        "bundles 22% smaller, 13% at run time)",
    ),
)
