"""/v1/score and /v1/rerank on the scripted engine."""

from __future__ import annotations

import array
import json

import numpy as np
import pytest

from firelane.gateway.apis.embeddings.vectors import Cosines
from tests.text.toy_model import write_model


def vectors(prompt: list[int], pooling: str) -> list[float]:  # noqa: ARG001
    return [float(len(prompt)), float(prompt[-1]), 1.0, -1.0]


def cosine(service, one: str, other: str) -> float:
    a, b = (np.array(vectors([0, *service.ids(text)], "last")) for text in (one, other))
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


@pytest.fixture
def scored(make_service, core, tmp_path):
    """A model with sentence-transformers' files."""
    (write_model(tmp_path, core) / "modules.json").write_text("[]")
    service = make_service(model_dir=tmp_path)
    service.run(setattr, service.engine, "embed", vectors)
    return service


def score(service, **fields):
    answer = service.http.post("/v1/score", json=fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_one_text_and_others(scored):
    made = score(scored, text_1="hey", text_2=["a", "hey", "longer text"])
    wanted = [cosine(scored, "hey", text) for text in ("a", "hey", "longer text")]
    assert made["object"] == "list"
    assert made["model"] == "toy"
    assert made["usage"] == {"prompt_tokens": 22, "total_tokens": 22}
    assert [(item["object"], item["index"]) for item in made["data"]] == [("score", i) for i in range(3)]
    np.testing.assert_allclose([item["score"] for item in made["data"]], wanted, rtol=1e-6)
    assert score(scored, queries="hey", documents="a")["data"] == made["data"][:1]


def test_pairs(scored):
    texts = [f"{'x' * i}{i % 7}" for i in range(20)]  # more than the engine takes at a time
    made = score(scored, text_1=texts, text_2=texts[::-1])
    wanted = [cosine(scored, *pair) for pair in zip(texts, texts[::-1], strict=True)]
    np.testing.assert_allclose([item["score"] for item in made["data"]], wanted, rtol=1e-6)


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
def test_rerank(scored, path):
    texts = ["a", "longer text", "hey", "b"]
    wanted = sorted(range(4), key=lambda i: -cosine(scored, "hey", texts[i]))
    documents = [*texts[:3], {"text": "b"}]
    made = scored.http.post(path, json={"query": "hey", "documents": documents}).json()
    assert [result["index"] for result in made["results"]] == wanted
    assert [result["document"]["text"] for result in made["results"]] == [texts[i] for i in wanted]
    assert made["results"][0]["relevance_score"] == pytest.approx(1)
    assert made["usage"]["total_tokens"] == 4 + sum(1 + len(text) for text in texts)
    few = {"query": "hey", "documents": documents, "top_n": 2, "return_documents": False}
    made = scored.http.post(path, json=few).json()
    assert [set(result) for result in made["results"]] == [{"index", "relevance_score"}] * 2
    assert made["results"][0]["index"] == wanted[0]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"text_1": "a"}, "`text_2` is empty"),
        ({"text_1": ["a", "b"], "text_2": ["c"]}, "give one, or as many"),
        ({"text_1": "a", "queries": "b", "text_2": "c"}, "either `text_1` or `queries`"),
        ({"text_1": "a", "text_2": ["c", ""]}, "empty text, number 1"),
        ({"text_1": "a", "text_2": ["c"] * 2048}, "at most 2047"),
        ({"text_1": "a", "text_2": "x" * 600}, "maximum context length"),
        ({"text_1": "a", "text_2": "b", "instruction": "x"}, "`instruction` is not supported"),
        ({"text_1": "a", "text_2": "b", "truncate_prompt_tokens": 0}, "use -1 or at least 1"),
    ],
)
def test_what_cannot_be_scored_is_refused(scored, fields, said):
    answer = scored.http.post("/v1/score", json=fields)
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]


def test_hints_and_truncation(scored):
    fields = {"text_1": "a", "text_2": "x" * 600, "truncate_prompt_tokens": -1, "priority": 3}
    answer = scored.http.post("/v1/score", json=fields)
    assert answer.headers["x-ignored-fields"] == "priority"
    assert answer.json()["usage"]["prompt_tokens"] == 2 + 512


def test_a_model_that_pools_in_another_way_is_asked_for_a_known_one(make_service, core, tmp_path):
    model_dir = write_model(tmp_path, core)
    (model_dir / "1_Pooling").mkdir()
    pooling = {"pooling_mode_cls_token": True}
    (model_dir / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    service = make_service(model_dir=model_dir)
    answer = service.http.post("/v1/rerank", json={"query": "a", "documents": ["b"]})
    assert answer.status_code == 400
    assert "name one as `pooling`" in answer.json()["error"]["message"]
    fields = {"query": "a", "documents": ["b"], "pooling": "mean"}
    assert service.http.post("/v1/rerank", json=fields).status_code == 200


@pytest.mark.parametrize("path", ["/v1/rerank", "/v1/score"])
def test_a_model_made_to_chat_says_so(service, path):
    fields = {"query": "a", "documents": ["b"]} if path == "/v1/rerank" else {"text_1": "a", "text_2": "b"}
    answer = service.http.post(path, json=fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "no_scores"
    assert "made to chat" in answer.json()["error"]["message"]
    assert service.http.post(path, json={**fields, "pooling": "mean"}).status_code == 200


def test_no_cosine_is_beyond_one():
    """Vectors of float32 are not of length 1 to the last bit."""
    found: list[float] = []
    for count in range(1, 60):
        numbers = array.array("f", [0.1 * i for i in range(1, count + 1)])
        cosines = Cosines([(0, 1), (0, 2)], lambda given, _: bytes(found.extend(given) or 0))
        for index, sign in enumerate((1, 1, -1)):
            cosines.add(index, array.array("f", [sign * one for one in numbers]).tobytes())
        cosines.body(0, None)
    assert len(found) == 118
    assert max(map(abs, found)) <= 1.0
