"""Prompts of sentence-transformers before texts, and Cohere's /v2/embed, on the scripted engine."""

from __future__ import annotations

import array
import base64
import json

import numpy as np
import pytest

from tests.text.toy_model import write_model

PROMPTS = {"query": "q: ", "passage": "p: ", "other": "o: "}


@pytest.fixture
def make_embedder(make_service, core, tmp_path):
    def make(**files: object):
        write_model(tmp_path, core)
        (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(files))
        (tmp_path / "modules.json").write_text("[]")
        return make_service(model_dir=tmp_path)

    return make


def texts_of(service) -> list[str]:
    sent = [array.array("i", request.prompt).tolist() for request in service.engine.submitted]
    return [service.core.decode(ids, skip_special_tokens=True) for ids in sent]


@pytest.mark.parametrize(
    ("fields", "before"),
    [
        ({}, ""),
        ({"prompt_name": "query"}, "q: "),
        ({"prompt_name": "other"}, "o: "),
        ({"input_type": "query"}, "q: "),
        ({"input_type": "search_query"}, "q: "),
        ({"input_type": "document"}, "p: "),
        ({"input_type": "search_document"}, "p: "),
    ],
)
def test_prompts(make_embedder, fields, before):
    service = make_embedder(prompts=PROMPTS)
    answer = service.http.post("/v1/embeddings", json={"input": ["hey", "you"], **fields})
    assert answer.status_code == 200, answer.text
    assert texts_of(service) == [f"{before}hey", f"{before}you"]


def test_the_default_prompt(make_embedder):
    service = make_embedder(prompts=PROMPTS, default_prompt_name="passage")
    service.http.post("/v1/embeddings", json={"input": "hey"})
    service.http.post("/v1/embeddings", json={"input": "hey", "prompt_name": "query"})
    assert texts_of(service) == ["p: hey", "q: hey"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"prompt_name": "nothing"}, "no prompt 'nothing'"),
        ({"input_type": "image"}, "no prompt 'image'"),
        ({"prompt_name": "query", "input_type": "query"}, "either `prompt_name` or `input_type`"),
        ({"input": [5, 6], "prompt_name": "query"}, "leave it out with token ids"),
        ({"prompt_name": 5}, "prompt_name"),
    ],
)
def test_prompts_that_are_refused(make_embedder, fields, said):
    answer = make_embedder(prompts=PROMPTS).http.post("/v1/embeddings", json={"input": "hey", **fields})
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]


def test_a_model_without_prompts_has_none_to_name(service):
    answer = service.http.post("/v1/embeddings", json={"input": "hey", "prompt_name": "query"})
    assert answer.status_code == 400
    assert "has none" in answer.json()["error"]["message"]
    answer = service.http.post("/v1/embeddings", json={"input": "hey", "input_type": "query"})
    assert answer.status_code == 200  # all kinds of input are read alike


def test_modules_that_are_not_computed_are_named(make_service, core, tmp_path):
    write_model(tmp_path, core)
    kinds = ("Transformer", "Pooling", "Dense", "Normalize")
    modules = [{"type": f"sentence_transformers.models.{kind}"} for kind in kinds]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    answer = make_service(model_dir=tmp_path).http.post("/v1/embeddings", json={"input": "hey"})
    assert answer.status_code == 400
    assert "modules.json asks for Dense" in answer.json()["error"]["message"]


def test_cohere(make_embedder):
    service = make_embedder(prompts=PROMPTS)
    fields = {"model": "toy", "texts": ["hey", "x" * 600], "input_type": "search_query"}
    kinds = {"embedding_types": ["float", "base64"], "output_dimension": 3}
    made = service.http.post("/v2/embed", json={**fields, **kinds}).json()
    assert made["texts"] == fields["texts"]
    assert made["response_type"] == "embeddings_by_type"
    vectors = np.array(made["embeddings"]["float"])
    assert vectors.shape == (2, 3)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-6)
    packed = [np.frombuffer(base64.b64decode(text), "<f4") for text in made["embeddings"]["base64"]]
    np.testing.assert_array_equal(np.array(packed), vectors.astype(np.float32))
    sent = texts_of(service)
    assert sent[0] == "q: hey"
    assert sent[1].startswith("q: xxx")  # its first tokens stay
    assert made["meta"]["billed_units"]["input_tokens"] == sum(
        len(request.prompt) // 4 for request in service.engine.submitted
    )
    plain = service.http.post("/v2/embed", json={"model": "toy", "texts": ["hey"]}).json()
    assert set(plain["embeddings"]) == {"float"}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"texts": []}, "`texts` is empty"),
        ({"texts": ["a", ""]}, "empty text, number 1"),
        ({}, "`texts` is empty"),
        ({"texts": ["x" * 600], "truncate": "NONE"}, "maximum context length"),
        ({"texts": ["x"], "images": ["data:image/png;base64,"]}, "`images` is not supported"),
        ({"texts": ["x"], "embedding_types": ["int8"]}, "embedding_types"),
        ({"texts": ["x"], "output_dimension": 9}, "vectors have 4"),
    ],
)
def test_refusals_of_cohere(make_embedder, fields, said):
    answer = make_embedder(prompts=PROMPTS).http.post("/v2/embed", json={"model": "toy", **fields})
    assert answer.status_code == 400
    assert said in answer.text
