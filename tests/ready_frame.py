"""The first frame of an engine, for tests that change what they are about."""

from __future__ import annotations

from firelane.wire.frames import PROTOCOL_VERSION, Ready

READY = Ready(
    protocol=PROTOCOL_VERSION,
    pid=1,
    model="m",
    vocab_size=9,
    max_model_len=9,
    max_num_seqs=1,
    block_size=16,
    num_blocks=4,
    weights_bytes=100,
    kv_bytes=20,
    load_s=0.1,
)
