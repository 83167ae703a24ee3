"""The hello of a gateway and an engine's host, before the frames, on a connection between hosts.

    gateway  Hello    protocol of the frames, version of Firelane, hash of the model's texts
    host     Welcome  number of this connection; the engine's frames follow
             Refusal  why not; the connection ends

Messages are msgpack maps behind a 4-byte little-endian length: unlike frames, any version of Firelane can
read those of any other one, so that the reason of a refusal arrives.
"""

from __future__ import annotations

import msgspec

from firelane.errors import FrameError
from firelane.link.framing import LENGTH_BYTES

MOST_BYTES = 1 << 14


class Hello(msgspec.Struct, frozen=True, tag="hello", kw_only=True):
    """From a gateway. model: as `cluster.model_text.text_identity` gives it."""

    protocol: int
    version: str
    model: str


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """From a host: frames follow. number: of this connection, in the ids of its requests."""

    number: int


class Refusal(msgspec.Struct, frozen=True, tag="refusal"):
    """From a host: no frames follow. is_passing: it is worth asking again soon."""

    reason: str
    is_passing: bool = False


HelloMessage = Hello | Welcome | Refusal
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[HelloMessage] = msgspec.msgpack.Decoder(HelloMessage)


def encode_hello(message: HelloMessage) -> bytes:
    body = _encoder.encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "little") + body


def take_hello(data: bytes) -> tuple[HelloMessage, bytes] | None:
    """The message at the beginning, and the bytes behind it; None where some are missing. Raises FrameError
    for what is no such message."""
    length = int.from_bytes(data[:LENGTH_BYTES], "little")
    if len(data) >= LENGTH_BYTES and length > MOST_BYTES:
        raise FrameError(f"a hello of {length} bytes: not a Firelane peer, or TLS on one side alone")
    end = LENGTH_BYTES + length
    if len(data) < max(end, LENGTH_BYTES + 1):
        return None
    try:
        return _decoder.decode(data[LENGTH_BYTES:end]), data[end:]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"not a hello: {error}: not a Firelane peer, or TLS on one side alone") from error
