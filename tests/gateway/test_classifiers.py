"""Models with labels on the scripted engine: pairs that they score by themselves, classes, and refusals."""

from __future__ import annotations

import array
import json
import math

import pytest
from tokenizers.processors import TemplateProcessing

from tests.text.toy_model import byte_tokenizer, write_model

PAIR = "<|bos|> $A <|eos|> $B:1 <|eos|>:1"


def logits(prompt: list[int], pooling: str) -> list[float]:  # noqa: ARG001
    return [len(prompt) / 10.0 - 1.0]


@pytest.fixture
def pair_core():
    """A tokenizer that joins two texts as BERT's does."""
    core = byte_tokenizer()
    ids = [(name, core.token_to_id(name)) for name in ("<|bos|>", "<|eos|>")]
    core.post_processor = TemplateProcessing(single="<|bos|> $A <|eos|>", pair=PAIR, special_tokens=ids)
    return core


@pytest.fixture
def make_classifier(make_service, pair_core, tmp_path):
    def make(labels: dict[str, str], files: dict[str, object] | None = None, **config: object):
        write_model(tmp_path, pair_core, template=None)
        full = {"architectures": ["BertForSequenceClassification"], "id2label": labels, **config}
        (tmp_path / "config.json").write_text(json.dumps(full))
        for name, content in (files or {}).items():
            (tmp_path / name).write_text(json.dumps(content))
        service = make_service(model_dir=tmp_path, tokens=pair_core)
        service.run(setattr, service.engine, "embed", logits)
        return service

    return make


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def post(service, path: str, **fields):
    answer = service.http.post(path, json=fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
def test_pairs_are_scored_by_the_model(make_classifier, path):
    service = make_classifier({"0": "LABEL_0"})
    made = post(service, path, query="hey", documents=["a", "longer text", {"text": "xyz"}], top_n=2)
    wanted = [sigmoid((3 + 3 + len(text)) / 10 - 1) for text in ("longer text", "xyz")]
    assert [result["index"] for result in made["results"]] == [1, 2]
    assert [result["relevance_score"] for result in made["results"]] == pytest.approx(wanted)
    requests = service.engine.submitted
    assert [request.second_text for request in requests] == [5] * 3  # behind a mark, three bytes and a mark
    assert made["usage"]["total_tokens"] == sum(3 + 3 + n for n in (1, 11, 3))


def test_scores(make_classifier):
    service = make_classifier({"0": "LABEL_0"})
    made = post(service, "/v1/score", text_1="hey", text_2=["a", "bb"])
    assert [item["score"] for item in made["data"]] == pytest.approx([sigmoid(-0.3), sigmoid(-0.2)])
    made = post(service, "/score", text_1=["hey", "h"], text_2=["a", "bb"], use_activation=False)
    assert [item["score"] for item in made["data"]] == pytest.approx([-0.3, -0.4])


@pytest.mark.parametrize(
    "config",
    [
        {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}},
        {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
    ],
)
def test_scores_of_a_model_without_a_function(make_classifier, config):
    service = make_classifier({"0": "LABEL_0"}, **config)
    made = post(service, "/v1/score", text_1="hey", text_2="a")
    assert made["data"][0]["score"] == pytest.approx(-0.3)


def test_the_second_text_is_cut(make_classifier):
    service = make_classifier({"0": "LABEL_0"})
    fields = {"query": "hey", "documents": ["x" * 600]}
    answer = service.http.post("/v1/rerank", json=fields)
    assert answer.status_code == 400
    assert "pair number 0 has 606 tokens" in answer.json()["error"]["message"]
    post(service, "/v1/rerank", **fields, truncate_prompt_tokens=-1)
    post(service, "/v1/rerank", **fields, truncate_prompt_tokens=12)
    lengths = [len(request.prompt) // 4 for request in service.engine.submitted]
    assert lengths == [512, 12]
    assert service.engine.submitted[1].prompt[-4:] == bytes([1, 0, 0, 0])  # the mark at the end stays


def test_classes(make_classifier):
    service = make_classifier({"0": "bad", "1": "fine", "2": "good"})
    made_of = lambda prompt, pooling: [0.5, float(len(prompt)), -1.0]  # noqa: ARG005, E731
    service.run(setattr, service.engine, "embed", made_of)
    made = post(service, "/classify", input=["ab", "abcd"])
    assert [item["label"] for item in made["data"]] == ["fine", "fine"]
    total = math.exp(0.5) + math.exp(4) + math.exp(-1)
    assert made["data"][0]["probs"] == pytest.approx([math.exp(x) / total for x in (0.5, 4, -1)])
    assert made["data"][0]["num_classes"] == 3
    assert made["usage"]["prompt_tokens"] == 4 + 6
    raw = post(service, "/classify", input="ab", use_activation=False)
    assert raw["data"][0]["probs"] == [0.5, 4.0, -1.0]
    pooled = post(service, "/pooling", input="ab")
    assert pooled["data"][0]["object"] == "pooling"
    assert pooled["data"][0]["data"] == made["data"][0]["probs"]


@pytest.mark.parametrize(
    ("path", "fields", "said"),
    [
        ("/v1/embeddings", {"input": "x"}, "makes no vectors: ask it at /v1/rerank"),
        ("/api/embed", {"model": "toy", "input": "x"}, "makes no vectors"),
        ("/pooling", {"input": "x", "task": "embed"}, "makes no vectors"),
        ("/pooling", {"input": "x", "task": "token_embed"}, "single tokens are not given"),
        ("/classify", {"input": []}, "is an empty list"),
        ("/classify", {"input": "x", "truncate_prompt_tokens": 0}, "use -1 or at least 1"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "pooling": "last"}, "leave `pooling` out"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}, "generates none"),
        (
            "/v1/messages",
            {"model": "toy", "max_tokens": 3, "messages": [{"role": "user", "content": "x"}]},
            "generates none",
        ),
    ],
)
def test_refusals(make_classifier, path, fields, said):
    service = make_classifier({"0": "LABEL_0"})
    answer = service.http.post(path, json=fields)
    assert answer.status_code == 400
    assert said in answer.text


def test_several_labels_give_no_score(make_classifier):
    service = make_classifier({"0": "a", "1": "b"})
    answer = service.http.post("/v1/rerank", json={"query": "a", "documents": ["b"]})
    assert answer.status_code == 400
    assert "2 labels and gives no score: ask it at /classify" in answer.json()["error"]["message"]


def test_models_without_labels_give_no_classes(service):
    answer = service.http.post("/classify", json={"input": "x"})
    assert answer.status_code == 400
    assert "has no labels" in answer.json()["error"]["message"]
    made = post(service, "/pooling", input="hey", dimensions=2)
    assert len(made["data"][0]["data"]) == 2


@pytest.fixture
def encoder(make_service, pair_core, tmp_path):
    """A service whose engine sees texts whole."""
    write_model(tmp_path, pair_core, template=None)
    (tmp_path / "modules.json").write_text("[]")
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "cls"}))
    service = make_service(model_dir=tmp_path, tokens=pair_core)
    service.run(service.engine.send, service.engine.ready(is_encoder=True))
    return service


def test_an_encoder_pools_in_its_own_way(encoder):
    post(encoder, "/v1/embeddings", input="hey")
    post(encoder, "/v1/embeddings", input="hey", pooling="cls")
    assert {request.pooling for request in encoder.engine.submitted} == {
        "last"
    }  # one row, which it has pooled
    answer = encoder.http.post("/v1/embeddings", json={"input": "hey", "pooling": "mean"})
    assert answer.status_code == 400
    assert "pools by `cls` and by nothing else" in answer.json()["error"]["message"]


def test_marks_around_a_text_that_is_cut_stay(encoder):
    for keep in (4, 2, 1, -1):
        post(encoder, "/v1/embeddings", input="x" * 600, truncate_prompt_tokens=keep)
    post(encoder, "/v1/embeddings", input="hey", truncate_prompt_tokens=9)
    sent = [array.array("i", request.prompt).tolist() for request in encoder.engine.submitted]
    first, *_, end = encoder.core.encode("x").ids
    (x,) = encoder.core.encode("x", add_special_tokens=False).ids
    assert sent[:3] == [[first, x, x, end], [first, end], [end]]
    assert sent[3] == [first, *[x] * 510, end]
    assert sent[4] == encoder.core.encode("hey").ids
