"""Prefill and decode on engines of their own with a model that keeps recurrent state: its snapshots travel
with the pages, and a real `openai` client gets what one engine gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import openai
from e2e_support import metric, wait_until

from firelane.bench.server import ServerProcess
from firelane.llm import LLM, SamplingParams
from tests.models.families import make_checkpoint

PROMPT = [(7 * i + i // 5) % 250 for i in range(170)]
"""Longer than what lies between two snapshots."""
BLOCK = 16
DRAWN = {"max_tokens": 20, "seed": 5, "temperature": 0.9}
SIZES = ["--max-num-seqs", "4", "--kv-cache-gib", "0.05", "--block-size", str(BLOCK)]


def test_snapshots_travel_with_the_pages(
    environ: dict[str, str],
    cache_dir: Path,
    tmp_path: Path,
    connect: Callable[[ServerProcess], openai.OpenAI],
) -> None:
    """Each answer is that of one engine; sooner or later one begins with a snapshot that came in time."""
    model = make_checkpoint("lfm2", "float32", tmp_path / "toy")
    sizes = {"max_num_seqs": 4, "block_size": BLOCK, "kv_cache_bytes": 1 << 24}
    with (
        LLM(str(model), cache_dir=cache_dir, **sizes) as alone,
        ServerProcess([str(model), "--prefill", "1", "--decode", "1", *SIZES], environ=environ) as server,
    ):
        client, number = connect(server), iter(range(1000))

        def begins_with_a_snapshot() -> bool:
            """The answer to a prompt that begins like no other before."""
            prompt = [*divmod(next(number), 200), *PROMPT]
            (expected,) = alone.generate([prompt], SamplingParams(**DRAWN, ignore_eos=True))
            answer = client.completions.create(
                model="toy", prompt=prompt, **DRAWN, extra_body={"ignore_eos": True, "return_token_ids": True}
            )
            assert answer.choices[0].model_dump()["token_ids"] == list(expected.outputs[0].token_ids)
            return metric(server.url, "firelane:state_snapshot_hits_total") > 0

        wait_until(begins_with_a_snapshot)
        assert metric(server.url, "firelane:kv_pulled_bytes_total") > 0
