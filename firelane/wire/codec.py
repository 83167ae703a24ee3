"""Frames to bytes and back: a 4-byte little-endian length, then the frame as a tagged msgpack array."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from firelane.errors import FirelaneError
from firelane.wire.frames import FromEngine, ToEngine

LENGTH_BYTES = 4
MAX_FRAME_BYTES = 64 << 20
FrameT = TypeVar("FrameT")

_encoder = msgspec.msgpack.Encoder()


class WireError(FirelaneError):
    """The peer sent something that is not a frame; the connection cannot be used any further."""


def encode(frame: ToEngine | FromEngine) -> bytes:
    """One frame, ready to be written to a socket."""
    return encode_any(frame)


def encode_any(frame: msgspec.Struct) -> bytes:
    """As `encode`, of a frame that others than engines understand."""
    buffer = bytearray(256)
    _encoder.encode_into(frame, buffer, LENGTH_BYTES)
    buffer[:LENGTH_BYTES] = (len(buffer) - LENGTH_BYTES).to_bytes(LENGTH_BYTES, "little")
    return bytes(buffer)


class FrameReader(Generic[FrameT]):
    """Cuts a byte stream into frames of one union type, e.g. `FrameReader(FromEngine)`.

    A frame may arrive in any number of pieces; a piece may hold any number of frames. After a WireError the
    reader must not be used again: the position of the next frame is not known.
    """

    def __init__(self, frame_type: Any, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._decoder: msgspec.msgpack.Decoder[FrameT] = msgspec.msgpack.Decoder(frame_type)
        self._max_frame_bytes = max_frame_bytes
        self._buffer = bytearray()

    @property
    def pending_bytes(self) -> int:
        """Bytes of a frame whose rest has not come yet."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[FrameT]:
        """The frames completed by `data`. Raises WireError on an oversized or undecodable frame."""
        self._buffer += data
        frames: list[FrameT] = []
        start = 0
        with memoryview(self._buffer) as view:
            while len(view) - start >= LENGTH_BYTES:
                end = start + LENGTH_BYTES + self._length(view[start : start + LENGTH_BYTES])
                if end > len(view):
                    break
                frames.append(self._decode(view[start + LENGTH_BYTES : end]))
                start = end
        del self._buffer[:start]
        return frames

    def _length(self, header: memoryview) -> int:
        length = int.from_bytes(header, "little")
        if length > self._max_frame_bytes:
            raise WireError(
                f"frame of {length} bytes is over the limit of {self._max_frame_bytes}: not a Firelane peer?"
            )
        return length

    def _decode(self, body: memoryview) -> FrameT:
        try:
            return self._decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise WireError(f"undecodable frame of {len(body)} bytes: {error}") from error
