"""Images that are decoded: sizes as in transformers, turned, flattened, first frames; and hostile files."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import struct
import zlib
from typing import Any

import numpy as np
import pytest

from firelane.child_process import Replacements
from firelane.errors import RequestError
from firelane.text.images.image_process import ImageDecoder
from firelane.text.images.image_worker import MAX_PIXELS, DecodeRequest, RefusedError, decode, fitting_size
from firelane.text.images.sources import ImageSource, image_source
from firelane.wire.images import ImageFormat

pillow = pytest.importorskip("PIL.Image")

TAKEN = ImageFormat(factor=32, min_pixels=65536, max_pixels=1 << 20, start=1, image=2, end=3)


def asked(data: bytes = b"", **changes: int) -> DecodeRequest:
    sizes = {"factor": 32, "min_pixels": 32 * 32, "max_pixels": 1 << 20} | changes
    return DecodeRequest(data, **sizes)


def file_of(image: Any, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def pixels_of(answer: bytes) -> np.ndarray:
    height, width = struct.unpack("<2I", answer[:8])
    return np.frombuffer(answer[8:], np.uint8).reshape(height, width, 3)


def solid(*sides: int, colour: Any = (10, 200, 30), mode: str = "RGB") -> Any:
    return pillow.new(mode, sides, colour)


def test_sizes_are_those_of_transformers() -> None:
    processing = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
    rng = np.random.default_rng(3)
    for _ in range(500):
        height, width = (int(side) for side in np.exp(rng.uniform(0, 9, 2)))
        if max(height, width) > 200 * min(height, width):
            continue
        limits = {"min_pixels": 65536, "max_pixels": 1 << 20}
        want = processing.smart_resize(height, width, factor=32, **limits)
        assert fitting_size(height, width, asked(**limits)) == tuple(want), (height, width)


def test_an_image_of_its_own_size_is_not_changed() -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (64, 96, 3), dtype=np.uint8)
    for kind in ("PNG", "WEBP"):
        data = file_of(pillow.fromarray(pixels), kind, **({"lossless": True} if kind == "WEBP" else {}))
        np.testing.assert_array_equal(pixels_of(decode(asked(data))), pixels)


def test_photographs_are_turned() -> None:
    """EXIF orientation 6: its top is at the right."""
    image = solid(64, 96)
    image.paste((255, 0, 0), (0, 0, 64, 32))
    exif = pillow.Exif()
    exif[0x0112] = 6
    found = pixels_of(decode(asked(file_of(image, "JPEG", exif=exif, quality=95))))
    assert found.shape == (64, 96, 3)
    assert found[32, 90, 0] > 200
    assert found[32, 5, 0] < 60


@pytest.mark.parametrize(("mode", "colour"), [("RGBA", (0, 0, 0, 0)), ("LA", (0, 0))])
def test_what_shows_through_is_white(mode: str, colour: Any) -> None:
    assert (pixels_of(decode(asked(file_of(solid(64, 64, colour=colour, mode=mode))))) == 255).all()


@pytest.mark.parametrize("mode", ["1", "L", "P", "I;16", "RGB"])
def test_modes_are_read(mode: str) -> None:
    assert pixels_of(decode(asked(file_of(pillow.new(mode, (64, 32)))))).shape == (32, 64, 3)


def test_first_frame_of_an_animation() -> None:
    frames = [solid(64, 64, colour=(255, 0, 0)), solid(64, 64, colour=(0, 0, 255))]
    data = file_of(frames[0], "GIF", save_all=True, append_images=frames[1:])
    found = pixels_of(decode(asked(data)))
    assert found[..., 0].min() > 200
    assert found[..., 2].max() < 60


def bomb(width: int, height: int) -> bytes:
    """A PNG that says to be so large."""
    head = struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", head), (b"IDAT", zlib.compress(bytes(1000))), (b"IEND", b"")]
    chunks = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


WHOLE = file_of(solid(64, 64), "JPEG")
REFUSED = {
    "bomb": (bomb(60_000, 60_000), f"{MAX_PIXELS:,}"),
    "large": (bomb(7_000, 7_000), f"{MAX_PIXELS:,}"),
    "thin": (file_of(solid(10_000, 1)), "more than 200 times"),
    "empty rows": (bomb(100, 100), "truncated"),
    "truncated": (WHOLE[: len(WHOLE) // 2], "truncated"),
    "no image": (b"GIF89a", "damaged"),
    "another format": (file_of(solid(64, 64), "BMP"), "no PNG, JPEG, WebP or GIF"),
    "vectors": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "no PNG, JPEG, WebP or GIF"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_files_that_are_refused(case: str) -> None:
    data, says = REFUSED[case]
    with pytest.raises(RefusedError, match=says):
        decode(asked(data))


def test_the_process_goes_on_behind_hostile_files() -> None:
    async def run() -> None:
        decoder = ImageDecoder(Replacements())
        try:
            for data, _ in REFUSED.values():
                with pytest.raises(RequestError) as caught:
                    await decoder.decode(ImageSource(data, is_low=False), TAKEN, "messages[0]")
                assert caught.value.param == "messages[0]"
            found = await decoder.decode(ImageSource(WHOLE, is_low=False), TAKEN, "x")
            assert (found.height, found.width) == (256, 256)
            both = await asyncio.gather(
                *(decoder.decode(ImageSource(WHOLE, is_low=low), TAKEN, "x") for low in (False, True))
            )
            assert both[0] == both[1] == found
        finally:
            decoder.close()

    asyncio.run(run())


def test_an_image_whose_process_is_killed_meanwhile_is_decoded_by_the_next_one() -> None:
    async def run() -> None:
        replaced = Replacements()
        decoder = ImageDecoder(replaced)
        try:
            source = ImageSource(WHOLE, is_low=False)
            found = await decoder.decode(source, TAKEN, "x")
            child = decoder._worker.child
            assert child is not None
            os.kill(child.pid, signal.SIGSTOP)  # so that it cannot answer before it is killed
            asked_again = asyncio.create_task(decoder.decode(source, TAKEN, "x"))
            await asyncio.sleep(0.1)
            assert not asked_again.done()
            os.kill(child.pid, signal.SIGKILL)
            assert await asked_again == found
            assert replaced.counts == {"image": 1}
        finally:
            decoder.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (5, "a URL is needed"),
        ({}, "a URL is needed"),
        ({"url": "data:image/png;base64,AAAA", "detail": "most"}, "`detail`"),
        ("file:///etc/passwd", "fetches no images"),
        ("data:text/html;base64,AAAA", "media type"),
        ("data:image/png;base64,A" + "A" * (28 << 20), "larger than 20 MiB"),
        ("data:image/png;base64,AAA", "no valid base64"),
    ],
    ids=range(7),
)
def test_sources_that_are_refused(given: Any, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        image_source(given, "messages[0].content[1]")


def test_sources_that_are_read() -> None:
    assert image_source("data:;base64,aGk=", "x") == (b"hi", False)
    assert image_source({"url": "data:image/png;charset=x;base64,aGk\n=", "detail": "low"}, "x") == (
        b"hi",
        True,
    )
