"""Embeddings of a server that computes, through the OpenAI client."""

from __future__ import annotations

import base64
from collections.abc import Callable

import httpx
import numpy as np
import openai
import pytest
from e2e_support import MODEL, metric

from firelane.bench.server import ServerProcess

Connect = Callable[[ServerProcess], openai.OpenAI]
TEXTS = ["def read_lines(path):", "def read_file(path):", "import os", "x" * 300]


def test_numbers_and_base64_are_the_same(cpu_server: ServerProcess, connect: Connect) -> None:
    client = connect(cpu_server)
    packed = client.embeddings.create(model=MODEL, input=TEXTS)
    plain = client.embeddings.create(model=MODEL, input=TEXTS, encoding_format="float")
    assert packed.usage == plain.usage
    for a, b in zip(packed.data, plain.data, strict=True):
        assert a.index == b.index
        assert (np.float32(a.embedding) == np.float32(b.embedding)).all()
        assert np.linalg.norm(a.embedding) == pytest.approx(1, rel=1e-6)


def test_similar_texts_are_near(cpu_server: ServerProcess, connect: Connect) -> None:
    found = connect(cpu_server).embeddings.create(model=MODEL, input=TEXTS, extra_body={"pooling": "mean"})
    vectors = np.array([item.embedding for item in found.data])
    near = vectors @ vectors.T
    assert near[0, 1] > max(near[0, 2], near[0, 3])


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_the_same_bits_alone_and_in_company(
    cpu_server: ServerProcess, connect: Connect, pooling: str
) -> None:
    def embed(texts: list[str]) -> list[bytes]:
        body = {"input": texts, "encoding_format": "base64", "pooling": pooling}
        answer = httpx.post(f"{cpu_server.url}/v1/embeddings", json=body, timeout=600).json()
        return [base64.b64decode(item["embedding"]) for item in answer["data"]]

    texts = [f"{i}: {text}" for i, text in enumerate(TEXTS * 20)]
    together = embed(texts)
    stream = connect(cpu_server).completions.create(model=MODEL, prompt="x", max_tokens=64, stream=True)
    next(iter(stream))
    assert [embed([text])[0] for text in texts[:6]] == together[:6]
    stream.close()


def test_dimensions(cpu_server: ServerProcess, connect: Connect) -> None:
    client = connect(cpu_server)
    whole = np.array(client.embeddings.create(model=MODEL, input="text").data[0].embedding)
    short = client.embeddings.create(model=MODEL, input="text", dimensions=8).data[0].embedding
    np.testing.assert_allclose(short, whole[:8] / np.linalg.norm(whole[:8]), rtol=1e-5)
    with pytest.raises(openai.BadRequestError, match=f"have {len(whole)}"):
        client.embeddings.create(model=MODEL, input="text", dimensions=len(whole) + 1)


def test_2048_inputs(null_server: ServerProcess, connect: Connect) -> None:
    client = connect(null_server)
    before = metric(null_server.url, "vllm:prompt_tokens_total")
    found = client.embeddings.create(model=MODEL, input=[[i % 200 + 1, 7] for i in range(2048)])
    assert [item.index for item in found.data] == list(range(2048))
    assert found.data[0].embedding == found.data[200].embedding
    assert found.data[0].embedding != found.data[1].embedding
    assert metric(null_server.url, "vllm:prompt_tokens_total") - before == 4096
