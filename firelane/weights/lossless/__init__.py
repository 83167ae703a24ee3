"""Lossless weights at rest: bf16 in about two thirds of its bytes, bit for bit (docs/lossless-format.md).

    encoded = codec.encode(bits)      bits: uint16 array of any shape, the bits of bf16
    bits = codec.decode(encoded)      the very same array

Packed model directories are read by weights.checkpoint.Checkpoint like any other, and made, undone and
checked by `pack`, `unpack` and `verify` (modules of this package, and commands of the same names).
"""
