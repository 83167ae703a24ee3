"""Pages of the KV cache that leave a GPU and come back: the bits of an engine that has computed them."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from firelane import LLM, SamplingParams
from firelane.backends.cuda.cuda_device import CudaDevice
from firelane.backends.cuda.device_pages import CopyGate, DevicePages
from firelane.bench.server import ServerProcess
from firelane.engine_config import TiersConfig
from tests.gpu.test_gpu_models import TEXT, greedy, model

pytestmark = pytest.mark.gpu


def test_bytes_of_pages_on_the_device() -> None:
    """Many more than one copy, over the stream beside the steps."""
    device, rng = CudaDevice(), np.random.default_rng(0)
    pool = device.zeros(64, 1 << 18)
    memory = DevicePages(device, pool, "x", CopyGate())
    source, into = memory.buffer(8), memory.buffer(8)
    source[:] = rng.integers(0, 256, source.shape, np.uint8)
    pages = [3, 60, 7, 8, 9, 0, 63, 31]
    assert memory.write(pages, source)
    assert memory.read(pages, into)
    assert (into == source).all()
    part = np.zeros((1, 1000), np.uint8)  # not pinned
    assert memory.read([60], part, 77)
    assert (part[0] == source[1, 77:1077]).all()
    assert int(pool.count_nonzero()) <= len(pages) << 18


@pytest.mark.parametrize("tier", ["host", "drive"])
def test_tokens_behind_pages_of_a_tier(cache_dir: Path, tmp_path: Path, tier: str) -> None:
    """The KV cache has room for one of the prompts; from the drive another engine takes them."""
    host, drive = TiersConfig(host_bytes=256 << 20), TiersConfig(disk=tmp_path, disk_bytes=256 << 20)
    texts = [f"{number}\n{TEXT}" for number in range(4)]
    with model(cache_dir) as llm:
        want = [(greedy(llm, [text]), found(llm, text)) for text in texts]
    small = {"kv_cache_bytes": 3 << 20, "tiers": host if tier == "host" else drive}
    with model(cache_dir, **small) as llm:
        first = [(greedy(llm, [text]), found(llm, text)) for text in texts]
        again = [found(llm, text) for text in texts]
    assert first == want
    if tier == "drive":
        with model(cache_dir, **small) as llm:
            again = [found(llm, text) for text in texts]
            assert [greedy(llm, [text]) for text in texts] == [output for output, _ in want]
    assert again == [count for _, count in want]


def found(llm: LLM, text: str) -> int:
    """Tokens of the prompt that were there already."""
    (output,) = llm.generate([text], SamplingParams(max_tokens=1))
    assert output.num_cached_tokens >= 64
    return output.num_cached_tokens


def test_an_engine_goes_on_with_pages_of_another() -> None:
    options = ["--backend", "cuda", "--max-model-len", "512", "--kv-cache-gib", "0.5"]
    answers = []
    for roles in (["--replicas", "1"], ["--prefill", "1", "--decode", "1"]):
        with ServerProcess([*options, *roles], timeout_s=240.0) as server:
            name = json.loads(fetched(f"{server.url}/v1/models"))["data"][0]["id"]
            answers.append([completed(server.url, name, TEXT[number * 50 :]) for number in range(3)])
            metrics = fetched(f"{server.url}/metrics")
    assert answers[0] == answers[1]
    (pulls,) = (line for line in metrics.splitlines() if line.startswith("firelane:kv_pulls_ok_total"))
    assert float(pulls.split()[-1]) > 0


def completed(url: str, name: str, prompt: str) -> tuple[str, list[float]]:
    """The text, and log-probabilities to the bit."""
    body = {"model": name, "prompt": prompt, "max_tokens": 16, "temperature": 0, "logprobs": 0}
    choice = json.loads(fetched(f"{url}/v1/completions", json.dumps(body).encode()))["choices"][0]
    return choice["text"], choice["logprobs"]["token_logprobs"]


def fetched(url: str, body: bytes | None = None) -> str:
    request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return answer.read().decode()
