"""Encoded images, as requests give them."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any, NamedTuple, cast

from firelane.errors import RequestError

MAX_BYTES = 20 << 20
"""Bytes of an image as it is sent."""
DETAILS = ("auto", "low", "high", "original")
MEDIA_TYPES = ("image/png", "image/jpeg", "image/jpg", "image/webp", "image/gif")
DATA_URL = re.compile(r"data:([a-zA-Z0-9.+/-]*)((?:;[^;,]*)*),", re.ASCII)
SHOWN = 60
"""Characters of a URL in a message."""


class ImageSource(NamedTuple):
    """An image, encoded. is_low: fewer rows of it are enough."""

    data: bytes
    is_low: bool


def image_source(given: Any, where: str) -> ImageSource:
    """The image of a part: a URL, or an object with one. Raises RequestError."""
    url, detail = given, "auto"
    if isinstance(given, dict):
        found = cast(dict[str, Any], given)
        url, detail = found.get("url"), found.get("detail") or "auto"
    if detail not in DETAILS:
        raise _refused(where, f"`detail` is {str(detail)[:SHOWN]!r}: use one of {', '.join(DETAILS)}")
    if not isinstance(url, str):
        raise _refused(where, "a URL is needed, as a text")
    return ImageSource(_data(url, where), detail == "low")


def data_url(media_type: str, data: Any) -> str:
    """The URL of an image that is given as base64."""
    return f"data:{media_type};base64,{data if isinstance(data, str) else ''}"


def _data(url: str, where: str) -> bytes:
    found = DATA_URL.match(url)
    if found is None:
        raise _refused(
            where,
            f"{url[:SHOWN]!r} is no data URL: this server fetches no images; send the image itself, as "
            "data:image/png;base64,...",
        )
    if found[1] and found[1].lower() not in MEDIA_TYPES:
        raise _refused(where, f"the media type {found[1][:SHOWN]!r} is not read: use PNG, JPEG, WebP or GIF")
    if ";base64" not in found[2].lower():
        raise _refused(where, "the data URL is not in base64: write ;base64 before the comma")
    text = url[found.end() :]
    if len(text) > MAX_BYTES * 4 // 3 + 4:
        raise _refused(where, f"the image is larger than {MAX_BYTES >> 20} MiB: make it smaller")
    try:
        data = base64.b64decode(text.translate(BLANKS), validate=True)
    except (binascii.Error, ValueError):
        raise _refused(where, "the data URL is no valid base64") from None
    if not data:
        raise _refused(where, "the image is empty")
    return data


BLANKS = {ord(blank): None for blank in " \r\n\t"}


def _refused(where: str, why: str) -> RequestError:
    return RequestError(f"`{where}`: {why}", param=where, code="invalid_image")
