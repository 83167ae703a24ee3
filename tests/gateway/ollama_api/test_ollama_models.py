"""Ollama's clients ask a server for its models, versions and vectors, and whether it is there."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest
from ollama_support import chat, lines, post, refused, told, user

from firelane.cli import main
from firelane.engine_state import LinkState
from firelane.errors import EngineDeadError
from firelane.gateway.apis.ollama import files as ollama_files
from firelane.gateway.apis.ollama.models import CHANGES
from tests.text.toy_model import write_model


def get(service, path):
    return told(service.http.get(path))


def test_tags_and_ps(service):
    listed = get(service, "/api/tags")["models"]
    assert [model["name"] for model in listed] == ["toy:latest", "alias:latest"]
    assert len({model["digest"] for model in listed}) == 1
    assert len(listed[0]["digest"]) == 64
    assert listed[0]["size"] == 1
    running = get(service, "/api/ps")["models"]
    assert [(model["model"], model["size"]) for model in running] == [("toy:latest", 2), ("alias:latest", 2)]
    assert {model["digest"] for model in running} == {listed[0]["digest"]}
    service.run(service.engine.die)
    service.wait_for(lambda: service.link.state is LinkState.DEAD)
    assert get(service, "/api/ps") == {"models": []}
    assert get(service, "/api/tags")["models"][0]["size"] == 0
    assert "engine" in refused(post(service, "/api/chat", messages=user()), 503)


def test_names_with_a_tag_keep_it(make_service):
    service = make_service(names=("org/toy:7b", "org:1/toy"))
    names = [model["name"] for model in get(service, "/api/tags")["models"]]
    assert names == ["org/toy:7b", "org:1/toy:latest"]
    assert all(chat(service, model=name)["done"] for name in names)


def test_show(make_service, core, tmp_path):
    model_dir = write_model(tmp_path, core)
    (model_dir / "config.json").write_text(json.dumps({"model_type": "qwen3", "vocab_size": 261}))
    defaults = {"eos_token_id": [1], "temperature": 0.6, "top_k": 20}
    (model_dir / "generation_config.json").write_text(json.dumps(defaults))
    service = make_service(model_dir=model_dir)
    for name in ({"model": "toy"}, {"name": "alias"}):
        shown = told(service.http.post("/api/show", json=name))
    assert shown["model_info"]["general.architecture"] == "qwen3"
    assert shown["model_info"]["qwen3.context_length"] == 512
    assert shown["details"]["families"] == ["qwen3"]
    assert shown["parameters"].split("\n") == [
        *("temperature 0.6", "top_k 20", "top_p 0.95", "min_p 0.05", "repeat_penalty 1"),
    ]
    assert shown["capabilities"] == ["completion", "embedding"]
    assert "`model` is missing" in refused(service.http.post("/api/show", json={}))
    assert refused(service.http.post("/api/show", json={"model": "other"}), 404)


def test_capabilities(taught):
    shown = told(taught.http.post("/api/show", json={"model": "toy"}))
    assert shown["capabilities"] == ["completion", "tools", "thinking", "embedding"]


def test_a_model_without_a_head_embeds_and_writes_nothing(taught):
    taught.engine.can_generate = False
    taught.call(taught.restart())
    for _ in ("an engine serves", "none does"):
        shown = told(taught.http.post("/api/show", json={"model": "toy"}))
        assert shown["capabilities"] == ["embedding"]
        taught.run(taught.engine.die)


def test_files_of_models_that_stay_are_here(service):
    assert told(post(service, "/api/pull", stream=False)) == {"status": "success"}
    streamed = post(service, "/api/pull", insecure=True, model="toy:latest")
    assert [line["status"] for line in lines(streamed)] == ["pulling manifest", "success"]
    assert streamed.headers["content-type"] == "application/x-ndjson"
    for stream in (True, False):
        said = refused(post(service, "/api/pull", model="llama3", stream=stream), 404)
        assert "no model of this server is called 'llama3': add it to the node's file" in said
    assert "`model` is missing" in refused(service.http.post("/api/pull", json={}))
    gone = service.http.request("DELETE", "/api/delete", json={"model": "toy"})
    assert "toy stays as it is" in refused(gone)


@pytest.fixture
def pulls(service, monkeypatch):
    """Stand in for the pull of a model: ten bytes come, or it fails with a message of the list that this
    gives."""
    control, failures, done = service.gateway.services.control, list[str](), [0]

    async def pull(_model):
        for done[0] in (0, 5, 10):
            await asyncio.sleep(0.01)
        if failures:
            raise EngineDeadError(failures[0])

    async def remove(_model):
        return 10

    monkeypatch.setattr(ollama_files, "TELL_S", 0.001)
    for name, value in (("pull", pull), ("remove", remove), ("pulled", lambda _: (done[0], 10))):
        monkeypatch.setattr(control, name, value)
    return failures


@pytest.mark.usefixtures("pulls")
def test_a_pull_is_told_line_by_line(service):
    first, *loads, last = lines(post(service, "/api/pull"))
    assert (first, last) == ({"status": "pulling manifest"}, {"status": "success"})
    assert {(line["status"], line["total"]) for line in loads} == {("downloading", 10)}
    assert loads[-1]["completed"] == 10
    assert loads[0]["digest"].startswith("sha256:")
    assert service.http.request("DELETE", "/api/delete", json={"name": "toy"}).status_code == 200


def test_a_pull_that_fails_is_told(service, pulls):
    pulls.append("no such model on the hub")
    assert lines(post(service, "/api/pull"))[-1] == {"error": "no such model on the hub"}
    assert "no such model on the hub" in refused(post(service, "/api/pull", stream=False), 503)


@pytest.mark.parametrize(("method", "path"), CHANGES)
def test_models_are_fixed(service, method, path):
    for body in (b'{"model": "toy"}', b"", b"no json"):
        answer = service.http.request(method, path, content=body)
        if method == "HEAD":
            assert (answer.status_code, answer.content) == (400, b"")
        else:
            assert "fixed when it starts" in refused(answer)


def test_the_server_is_there(service):
    assert get(service, "/api/version")["version"].count(".") == 2
    for method in ("GET", "HEAD"):
        assert service.http.request(method, "/").status_code == 200


def test_vectors(service):
    answer = told(post(service, "/api/embed", input=["hey", "you"]))
    assert answer["model"] == "toy"
    assert answer["prompt_eval_count"] == 8
    assert answer["total_duration"] >= answer["load_duration"] >= 0
    np.testing.assert_allclose(np.linalg.norm(answer["embeddings"], axis=1), 1, rtol=1e-6)
    (cut,) = told(post(service, "/api/embed", input="hey", dimensions=2))["embeddings"]
    np.testing.assert_allclose(np.linalg.norm(cut), 1, rtol=1e-6)
    whole = told(post(service, "/api/embeddings", prompt="hey"))["embedding"]
    assert whole[0] == 4  # not scaled
    assert told(post(service, "/api/embed", input=[]))["embeddings"] == []
    assert told(post(service, "/api/embed", input=""))["embeddings"] == []
    assert told(post(service, "/api/embeddings", prompt=""))["embedding"] == []


def test_long_texts_are_cut_at_their_end(service):
    told(post(service, "/api/embed", input="a" * 600 + "b"))
    (request,) = service.engine.submitted
    ids = np.frombuffer(request.prompt, np.int32)
    assert (len(ids), ids[0]) == (512, 0)
    said = refused(post(service, "/api/embed", input="a" * 600, truncate=False))
    assert "maximum context length" in said


def test_no_option_changes_a_vector(service):
    answer = post(service, "/api/embed", input="x", keep_alive=0, options={"temperature": 1, "num_ctx": 8})
    names = answer.headers["x-ignored-fields"].split(", ")
    assert sorted(names) == ["options.num_ctx", "options.temperature"]


def test_texts_that_make_no_vector_are_refused(service):
    assert "empty entry, number 1" in refused(post(service, "/api/embed", input=["a", ""]))
    assert "at most 2048" in refused(post(service, "/api/embed", input=["a"] * 2049))
    assert "`dimensions` is 5" in refused(post(service, "/api/embed", input="a", dimensions=5))


def test_the_command_that_shows(service, capsys):
    assert main(["show", "--url", str(service.http.base_url)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("model     toy: ")
    assert lines[1] == "context   512 tokens"
    assert "temperature 0.8, top_k 40, top_p 0.95" in lines[3]
