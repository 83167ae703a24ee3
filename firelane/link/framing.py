"""Messages to bytes and back: a 4-byte little-endian length, then the message in msgpack."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from firelane.errors import FrameError

LENGTH_BYTES = 4
MAX_FRAME_BYTES = 64 << 20
FrameT = TypeVar("FrameT")
Buffer = bytes | bytearray | memoryview

UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
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
            if end < len(data):
                self._buffer += data[end:]
            return frames
        self._buffer += data
        frames, end = self._cut(self._buffer)
        del self._buffer[:end]
        return frames

    def _cut(self, data: bytes | bytearray) -> tuple[list[FrameT], int]:
        """The whole frames at the beginning, and where they end. Called for each read of a connection: it
        calls nothing of its own where all is well."""
        frames: list[FrameT] = []
        start, count, decode_body = 0, len(data), self._decoder.decode
        with memoryview(data) as view:
            while count - start >= LENGTH_BYTES:
                body = start + LENGTH_BYTES
                length = int.from_bytes(view[start:body], "little")
                end = body + length
                if length > self._max_frame_bytes:
                    raise _too_long(length, self._max_frame_bytes)
                if end > count:
                    break
                try:
                    frames.append(decode_body(view[body:end]))
                except UNDECODABLE as error:
                    raise _no_message(length, error) from error
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
        raise _too_long(length, most_bytes)
    return length


def decode(decoder: msgspec.msgpack.Decoder[FrameT], body: Buffer) -> FrameT:
    """Raises FrameError."""
    try:
        return decoder.decode(body)
    except UNDECODABLE as error:
        raise _no_message(len(body), error) from error


def _too_long(length: int, most_bytes: int) -> FrameError:
    return FrameError(f"frame of {length} bytes is over the limit of {most_bytes}: not a Firelane peer?")


def _no_message(length: int, error: Exception) -> FrameError:
    return FrameError(f"undecodable frame of {length} bytes: {error}")
