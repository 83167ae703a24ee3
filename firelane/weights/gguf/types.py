"""Types of tensors in GGUF files: how many numbers a block holds, and in how many bytes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BlockType:
    """A type by its name in llama.cpp; `number`: in files; `size`: numbers in a block of `nbytes` bytes."""

    name: str
    number: int
    size: int
    nbytes: int


_ALL = (
    BlockType("F32", 0, 1, 4),
    BlockType("F16", 1, 1, 2),
    BlockType("Q4_0", 2, 32, 18),
    BlockType("Q4_1", 3, 32, 20),
    BlockType("Q5_0", 6, 32, 22),
    BlockType("Q5_1", 7, 32, 24),
    BlockType("Q8_0", 8, 32, 34),
    BlockType("Q2_K", 10, 256, 84),
    BlockType("Q3_K", 11, 256, 110),
    BlockType("Q4_K", 12, 256, 144),
    BlockType("Q5_K", 13, 256, 176),
    BlockType("Q6_K", 14, 256, 210),
    BlockType("IQ2_XXS", 16, 256, 66),
    BlockType("IQ2_XS", 17, 256, 74),
    BlockType("IQ3_XXS", 18, 256, 98),
    BlockType("IQ1_S", 19, 256, 50),
    BlockType("IQ4_NL", 20, 32, 18),
    BlockType("IQ3_S", 21, 256, 110),
    BlockType("IQ2_S", 22, 256, 82),
    BlockType("IQ4_XS", 23, 256, 136),
    BlockType("IQ1_M", 29, 256, 56),
    BlockType("BF16", 30, 1, 2),
    BlockType("TQ1_0", 34, 256, 54),
    BlockType("TQ2_0", 35, 256, 66),
    BlockType("MXFP4", 39, 32, 17),
)
TYPES = {found.number: found for found in _ALL}
