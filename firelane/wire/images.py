"""Images in requests: their pixels, and the words that stand for them in prompts."""

from __future__ import annotations

import hashlib

import msgspec

WORD_BYTES = 4
SIGN = 0x80


class Image(msgspec.Struct, frozen=True, array_like=True):
    """An image as its encoder takes it. start: the index of its first row in the prompt. pixels: uint8
    [height, width, 3]."""

    start: int
    height: int
    width: int
    pixels: bytes

    @property
    def digest(self) -> bytes:
        """32 bytes, of size and pixels."""
        return digest_of(self.height, self.width, self.pixels)


class ImageFormat(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The way in which a model takes images. Sides are multiples of `factor`, the larger at most ASPECT times
    the smaller; of min_pixels to max_pixels each factor² are a row in the prompt. start, image, end: tokens
    before, of and behind the rows."""

    factor: int
    min_pixels: int
    max_pixels: int
    start: int
    image: int
    end: int

    def rows(self, height: int, width: int) -> int:
        """Rows of an image in the prompt."""
        return height * width // self.factor**2


ASPECT = 200
"""Largest side of an image over its smallest one."""
MOST_IMAGES = 16
"""In one request: a frame holds them."""


def digest_of(height: int, width: int, pixels: bytes) -> bytes:
    """32 bytes that tell images apart."""
    size = height.to_bytes(4, "little") + width.to_bytes(4, "little")
    return hashlib.blake2b(size + pixels, digest_size=32, person=b"firelane-image").digest()


def image_words(digest: bytes, count: int) -> bytes:
    """The words that stand in the prompt for an image's rows: `count` little-endian int32 below 0, as no id
    of a token is. All pages that hold some of them are named by the image."""
    words = bytearray(hashlib.shake_256(digest).digest(WORD_BYTES * count))
    words[WORD_BYTES - 1 :: WORD_BYTES] = bytes(byte | SIGN for byte in words[WORD_BYTES - 1 :: WORD_BYTES])
    return bytes(words)
