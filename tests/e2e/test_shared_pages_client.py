"""Replicas that have pages from each other, under a real `openai` client."""

from __future__ import annotations

import openai
import pytest
from e2e_support import MODEL, metric, wait_until

from firelane.bench.server import ServerProcess

OPTIONS = ["--replicas", "2", "--share-pages", "--routing", "least-requests"]
PROMPT = "import os\n\ndef walk(path):\n    for name in os.listdir(path):\n" * 24


@pytest.mark.parametrize("gateways", ["1", "2"])
def test_a_busy_engine_gives_its_pages_to_an_idle_one(environ: dict[str, str], gateways: str) -> None:
    """Each of several gateway processes knows what the engines have from them."""
    with (
        ServerProcess([*OPTIONS, "--gateways", gateways], environ=environ) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        wait_until(lambda: metric(server.url, "firelane:replicas_up") == 2)

        def answer(prompt: str) -> tuple[str, int]:
            """While the engine that has the prompt is busy with another stream."""
            first = client.completions.create(model=MODEL, prompt=prompt, max_tokens=8, temperature=0)
            busy = client.completions.create(
                model=MODEL, prompt=prompt, max_tokens=1000, stream=True, extra_body={"ignore_eos": True}
            )
            next(iter(busy))
            second = client.completions.create(model=MODEL, prompt=prompt, max_tokens=8, temperature=0)
            busy.close()
            assert second.choices[0].text == first.choices[0].text
            assert second.usage is not None
            assert second.usage.prompt_tokens_details is not None
            return second.choices[0].text, second.usage.prompt_tokens_details.cached_tokens or 0

        pulls, number = 0.0, 0
        while not pulls:  # connections of engines that have just started may take a moment
            _, cached = answer(f"# {number}\n{PROMPT}")
            pulls, number = metric(server.url, "firelane:kv_pulls_ok_total"), number + 1
            assert number < 100
        assert cached >= 256
