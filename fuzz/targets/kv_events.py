"""Events of an engine's cache on their way to subscribers, and the option that configures them: a letter,
then frames or the option's JSON."""

from __future__ import annotations

import msgspec

from firelane.errors import FrameError, UsageError
from firelane.gateway.kv_events.config import KvEventsConfig, offset_port
from firelane.gateway.kv_events.encoding import BatchEncoder, EventBatch
from firelane.link.framing import FrameReader
from firelane.wire.cache_events import CacheEvents
from fuzz.target import Target


def run(data: bytes) -> None:
    if data[:1] == b"c":
        _configure(data[1:].decode(errors="replace"))
        return
    encoder = BatchEncoder(block_size=4, medium="CPU", rank=0)
    for frame in FrameReader[CacheEvents](CacheEvents, 1 << 12).feed(data[1:]):
        batch = msgspec.msgpack.decode(encoder.encode(1.0, frame.events), type=EventBatch)
        assert len(batch.events) == len(frame.events)


def _configure(text: str) -> None:
    config = KvEventsConfig.parse(text)
    if config is not None:
        for number in (0, 1, 7):
            assert offset_port(config.endpoint, number)


TARGET = Target(
    run=run,
    refusals=(UsageError, FrameError),
    words=(
        *(
            b"\xa5cache",
            b"\xa6stored",
            b"\xa7removed",
            b"\xa7cleared",
            b"\x92",
            b"\x95",
            b"\xcf",
            b"\xc4\x10",
        ),
        *(
            b'"enable_kv_cache_events":true',
            b'"endpoint":"tcp://*:5557"',
            b'"replay_endpoint":"tcp://*:',
            b"ipc://",
        ),
        *(b'"buffer_steps":', b'"hwm":', b'"publisher":"zmq"', b'"topic":"t"', b"65535"),
    ),
)
