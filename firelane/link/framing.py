"""Messages to bytes and back: a 4-byte little-endian length, then the message in msgpack."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from firelane.errors import FrameError

LENGTH_BYTES = 4
MAX_FRAME_BYTES = 64 << 20
FrameT = TypeVar("FrameT")
Buffer = bytes | bytearray | memoryview

_encoder = msgspec.msgpack.Encoder()


def encode(message: msgspec.Struct) -> bytes:
    """A frame, ready to be written to a socket."""
    buffer = bytearray(256)
    _encoder.encode_into(message, buffer, LENGTH_BYTES)
    buffer[:LENGTH_BYTES] = (len(buffer) - LENGTH_BYTES).to_bytes(LENGTH_BYTES, "little")
    return bytes(buffer)


class FrameReader(Generic[FrameT]):
    """Cuts a byte stream into messages of one union type, e.g. `FrameReader(FromEngine)`.

    A frame may arrive in any number of pieces; a piece may hold any number of frames. After a FrameError the
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
        """The frames completed by `data`. Raises FrameError on an oversized or undecodable frame."""
        if not self._buffer:
            frames, end = self._cut(data)
            self._buffer += data[end:]
            return frames
        self._buffer += data
        frames, end = self._cut(self._buffer)
        del self._buffer[:end]
        return frames

    def _cut(self, data: bytes | bytearray) -> tuple[list[FrameT], int]:
        """The whole frames at the beginning, and where they end."""
        frames: list[FrameT] = []
        start, count = 0, len(data)
        with memoryview(data) as view:
            while count - start >= LENGTH_BYTES:
                body = start + LENGTH_BYTES
                end = body + checked_length(view[start:body], self._max_frame_bytes)
                if end > count:
                    break
                frames.append(decode(self._decoder, view[body:end]))
                start = end
        return frames, start


def take(decoder: msgspec.msgpack.Decoder[FrameT], data: bytes, most_bytes: int) -> tuple[FrameT, int] | None:
    """The message of the first frame, and where that ends; None where some of it is missing. Raises
    FrameError."""
    if len(data) < LENGTH_BYTES:
        return None
    end = LENGTH_BYTES + checked_length(data[:LENGTH_BYTES], most_bytes)
    return None if end > len(data) else (decode(decoder, data[LENGTH_BYTES:end]), end)


def checked_length(header: Buffer, most_bytes: int) -> int:
    """The bytes of a frame's message. Raises FrameError where they are more than most_bytes."""
    length = int.from_bytes(header, "little")
    if length > most_bytes:
        raise FrameError(f"frame of {length} bytes is over the limit of {most_bytes}: not a Firelane peer?")
    return length


def decode(decoder: msgspec.msgpack.Decoder[FrameT], body: Buffer) -> FrameT:
    """Raises FrameError."""
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"undecodable frame of {len(body)} bytes: {error}") from error
