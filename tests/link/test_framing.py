from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firelane.errors import FrameError
from firelane.link.framing import LENGTH_BYTES, FrameReader, encode, take
from firelane.wire.frames import (
    Abort,
    Drain,
    EngineStats,
    Failed,
    Finished,
    FromEngine,
    NewRequest,
    Progress,
    Ready,
    Rejected,
    Sampling,
    Started,
    StepFrame,
    Submit,
    ToEngine,
    TokenLogprobs,
)
from firelane.wire.images import ImageFormat

REQUEST = NewRequest(
    id=7, prompt=b"\1\0\0\0", sampling=Sampling(seed=2**63, logit_bias=[(3, -1.5)]), salt=b"acme"
)
TO_ENGINE = [Submit([REQUEST]), Submit([]), Abort([1, 2]), Drain(1.5)]
STEP = StepFrame(
    step=3,
    ids=[1, 2],
    tokens=[10, 20],
    started=[Started(1, 16, 0.5)],
    finished=[Finished(2, "stop")],
    logprobs=[TokenLogprobs(1, 4, 10, -0.5, [10], [-0.5])],
    stats=EngineStats(running=2),
)
FROM_ENGINE = [Progress("load", 1.0, 2.0), Failed("no", 1), STEP, Rejected(9, "too long")]


@pytest.mark.parametrize(
    ("frame", "kind"), [(f, ToEngine) for f in TO_ENGINE] + [(f, FromEngine) for f in FROM_ENGINE]
)
def test_round_trip(frame, kind):
    assert FrameReader(kind).feed(encode(frame)) == [frame]


def test_an_engine_that_knows_of_no_images_takes_none():
    """Its Ready ends before the newest field."""
    sizes = dict.fromkeys(
        ("pid", "vocab_size", "max_model_len", "max_num_seqs", "block_size", "num_blocks"), 1
    )
    more = {"weights_bytes": 1, "kv_bytes": 1, "load_s": 0.5, "role": "prefill"}
    images = ImageFormat(factor=32, min_pixels=1024, max_pixels=65536, start=1, image=2, end=3)
    ready = Ready(protocol=9, model="m", **sizes, **more, images=images)
    fields = msgspec.msgpack.decode(encode(ready)[LENGTH_BYTES:])
    body = msgspec.msgpack.encode(fields[:-1])
    frames = FrameReader(FromEngine).feed(encode(ready) + len(body).to_bytes(LENGTH_BYTES, "little") + body)
    assert frames == [ready, msgspec.structs.replace(ready, images=None)]


@given(
    st.lists(st.sampled_from(FROM_ENGINE), max_size=6), st.lists(st.integers(1, 40), min_size=1, max_size=20)
)
def test_any_cut_of_the_stream_gives_the_same_frames(frames, cuts):
    reader, stream, got = FrameReader(FromEngine), b"".join(map(encode, frames)), []
    while stream:
        for cut in cuts:
            got += reader.feed(stream[:cut])
            stream = stream[cut:]
    assert got == frames
    assert reader.pending_bytes == 0


def test_oversized_length_is_refused_before_the_body_arrives():
    with pytest.raises(FrameError, match="over the limit"):
        FrameReader(ToEngine, 100).feed(b"\x65\0\0\0")


@pytest.mark.parametrize("body", [b"GET ", b"", b"\x92\xa5abort\xa1x", b"\x91\xa4nope", b"\xc1"])
def test_garbage_body(body):
    with pytest.raises(FrameError, match="undecodable"):
        FrameReader(ToEngine).feed(len(body).to_bytes(4, "little") + body)


def test_wrong_direction_is_refused():
    with pytest.raises(FrameError):
        FrameReader(ToEngine).feed(encode(STEP))


def test_http_on_the_frame_socket_is_refused():
    with pytest.raises(FrameError):
        FrameReader(ToEngine).feed(b"GET / HTTP/1.1\r\n\r\n")


@given(st.binary(max_size=200))
def test_random_bytes_never_raise_anything_else(data):
    with contextlib.suppress(FrameError):
        FrameReader(ToEngine, 64).feed(data)


def test_a_frame_is_taken_once_it_is_whole():
    frame, decoder = encode(Drain(1.5)), msgspec.msgpack.Decoder(ToEngine)
    size = len(frame) - LENGTH_BYTES
    for end in range(len(frame)):
        assert take(decoder, frame[:end], size) is None
    assert take(decoder, frame + b"more", size) == (Drain(1.5), len(frame))
    with pytest.raises(FrameError):
        take(decoder, frame, size - 1)
