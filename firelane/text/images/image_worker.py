"""python -m firelane.text.images.image_worker FD: decode images, and resize them for a model.

The process at the other end of the socket FD sends DecodeRequests; each answer is an outcome, and pixels or
what is wrong. An image that takes too long ends this process; one that takes too much memory has it answer
that, and end."""

from __future__ import annotations

import io
import math
import signal
import sys
import warnings
from typing import Any

import msgspec

from firelane.child_process import as_child, limit_memory
from firelane.child_process.worker import framed, receive
from firelane.heap import map_large_blocks, trim_heap
from firelane.sandbox.confine import confine_worker
from firelane.wire.images import ASPECT

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
MAX_PIXELS = 40_000_000
"""Pixels of an image as it is sent: what is larger is refused before it is decoded."""
MEMORY_BYTES = 1 << 30
CPU_S = 10.0
DECODED, REFUSED, TOO_MUCH = b"i", b"r", b"m"
"""Outcomes: the first byte of an answer."""
WHITE = (255, 255, 255, 255)


class DecodeRequest(msgspec.Struct, array_like=True):
    """The image, and what the model takes: as in wire.ImageFormat."""

    data: bytes
    factor: int
    min_pixels: int
    max_pixels: int


class RefusedError(Exception):
    """The image is not taken; the message says why."""


def fitting_size(height: int, width: int, asked: DecodeRequest) -> tuple[int, int]:
    """Sides that are multiples of the factor, of about the same ratio, within the limits (Qwen2-VL, 2024)."""
    factor, pixels = asked.factor, height * width
    if max(height, width) > ASPECT * min(height, width):
        raise RefusedError(f"{width} * {height} pixels: one side is more than {ASPECT} times the other")
    tall, wide = (round(side / factor) * factor for side in (height, width))
    if tall * wide > asked.max_pixels:
        scale = math.sqrt(pixels / asked.max_pixels)
        return tuple(max(factor, math.floor(side / scale / factor) * factor) for side in (height, width))  # type: ignore[return-value]
    if tall * wide < asked.min_pixels:
        scale = math.sqrt(asked.min_pixels / pixels)
        return tuple(math.ceil(side * scale / factor) * factor for side in (height, width))  # type: ignore[return-value]
    return tall, wide


def decode(asked: DecodeRequest) -> bytes:
    """Height and width, four bytes each, little-endian, then uint8 [height, width, 3]. Raises RefusedError,
    MemoryError."""
    from PIL import Image, ImageOps

    warnings.simplefilter("error", Image.DecompressionBombWarning)
    Image.MAX_IMAGE_PIXELS = MAX_PIXELS
    try:
        with Image.open(io.BytesIO(asked.data), formats=FORMATS) as image:
            width, height = image.size
            if width * height > MAX_PIXELS:
                raise RefusedError(f"it has {width} * {height} pixels: at most {MAX_PIXELS:,} are decoded")
            image.seek(0)
            turned = ImageOps.exif_transpose(image)
            size = fitting_size(turned.height, turned.width, asked)
            resized = _opaque(turned).resize((size[1], size[0]), Image.Resampling.BICUBIC)
    except (RefusedError, MemoryError):
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise RefusedError(f"it has more than {MAX_PIXELS:,} pixels, the most that are decoded") from None
    except Image.UnidentifiedImageError:
        raise RefusedError("it is no PNG, JPEG, WebP or GIF, or it is damaged") from None
    except Exception as error:  # decoders of damaged files raise nearly anything
        raise RefusedError(f"it cannot be decoded ({str(error)[:80]}): it may be truncated") from None
    return b"".join((*(side.to_bytes(4, "little") for side in size), resized.tobytes()))


def _opaque(image: Any) -> Any:
    """In RGB, on white."""
    from PIL import Image

    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        seen = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", seen.size, WHITE), seen).convert("RGB")
    return image.convert("RGB")


def _answer(request: bytes) -> bytes:
    try:
        return DECODED + decode(msgspec.msgpack.decode(request, type=DecodeRequest))
    except MemoryError:
        return TOO_MUCH
    except RefusedError as error:
        return REFUSED + str(error).encode("utf-8", "replace")


def _load_decoders() -> None:
    """Before files are out of reach."""
    from PIL import GifImagePlugin, ImageOps, JpegImagePlugin, PngImagePlugin, WebPImagePlugin

    del GifImagePlugin, ImageOps, JpegImagePlugin, PngImagePlugin, WebPImagePlugin


def main(arguments: list[str]) -> int:
    sock = as_child(arguments[0])
    _load_decoders()
    limit_memory(MEMORY_BYTES)
    confine_worker()
    map_large_blocks()
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    receive(sock)  # what a new process is asked first
    sock.sendall(framed(DECODED))
    while request := receive(sock):
        signal.setitimer(signal.ITIMER_PROF, CPU_S)
        answer = _answer(request)
        signal.setitimer(signal.ITIMER_PROF, 0)
        sock.sendall(framed(answer))
        if answer[:1] == TOO_MUCH:
            return 1
        del request, answer
        trim_heap()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
