"""Paths of llama-server, vLLM and SGLang by which their clients find out about a server, and steer it."""

from __future__ import annotations

import threading

import pytest
from completions_support import completion

from firelane.gateway.tenants.keyfile import hashed

KEYS = f"""
[tenants.acme]
keys = ["{hashed("user-key-of-the-tests-0001")}"]
models = ["toy"]

[tenants.boss]
keys = ["{hashed("boss-key-of-the-tests-0001")}"]
admin = true
"""
USER = {"authorization": "Bearer user-key-of-the-tests-0001"}
BOSS = {"authorization": "Bearer boss-key-of-the-tests-0001"}
ADMIN = [
    ("POST", "/flush_cache"),
    ("POST", "/abort_request"),
    ("POST", "/reset_prefix_cache"),
    ("POST", "/sleep"),
    ("POST", "/wake_up"),
]
READ = ["/props", "/slots", "/model_info", "/get_model_info", "/server_info", "/get_server_info", "/load"]
READ += ["/is_sleeping", "/models"]
OPEN = ["/healthz", "/readyz", "/livez", "/v1/health", "/health_generate", "/version"]


def get(service, path, status=200, **options):
    answer = service.http.get(path, **options)
    assert answer.status_code == status, answer.text
    return answer.json()


def test_props(service):
    report = get(service, "/props")
    settings = report["default_generation_settings"]
    assert settings["n_ctx"] == service.model.max_model_len
    assert settings["params"]["temperature"] == 0.8
    assert settings["params"]["repeat_penalty"] == 1
    assert report["total_slots"] == service.link.ready.max_num_seqs
    assert report["model_alias"] == report["model_path"] == "toy"
    assert "<|{{ m.role }}|>" in report["chat_template"]
    assert (report["bos_token"], report["eos_token"]) == ("<|bos|>", "<|eos|>")
    assert report["is_sleeping"] is False
    assert get(service, "/props?model=alias&autoload=false") == report
    assert get(service, "/props?model=none", 404)["error"]["code"] == "model_not_found"
    assert service.http.post("/props", json={}).status_code == 405


def test_slots_are_numbers(service):
    slots = get(service, "/slots")
    assert [slot["id"] for slot in slots] == list(range(service.link.ready.max_num_seqs))
    assert {slot["is_processing"] for slot in slots} == {False}
    assert {slot["n_ctx"] for slot in slots} == {service.model.max_model_len}
    assert {name for slot in slots for name in slot} == {"id", "n_ctx", "speculative", "is_processing"}
    assert get(service, "/slots?fail_on_no_slot=1") == slots
    assert service.http.post("/slots/0?action=erase").status_code == 404
    assert get(service, "/slots?surprise=1", 400)["error"]["param"] == "surprise"


def test_apply_template(service):
    body = {"messages": [{"role": "user", "content": "hi"}]}
    answer = service.http.post("/apply-template", json=body)
    assert answer.json() == {"prompt": "<|bos|><|user|>hi\n<|assistant|>"}
    body = {"messages": [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]}
    answer = service.http.post("/apply-template", json=body)
    assert answer.json() == {"prompt": "<|bos|><|system|>a\n<|user|>b\n<|assistant|>"}
    assert service.http.post("/apply-template", json={}).status_code == 400
    assert service.http.post("/apply-template", content=b"{").status_code == 400
    assert not service.engine.submitted


def test_tokens_in_llama_servers_form(service):
    ids = service.ids("hé")
    answer = service.http.post("/tokenize", json={"content": "hé"}).json()
    assert answer == {"tokens": ids}
    answer = service.http.post("/tokenize", json={"content": "hé", "add_special": True}).json()
    assert answer == {"tokens": [0, *ids]}
    answer = service.http.post("/tokenize", json={"content": "hé", "with_pieces": True}).json()
    assert answer["tokens"][0] == {"id": ids[0], "piece": "h"}
    assert answer["tokens"][1] == {"id": ids[1], "piece": [0xC3]}
    back = service.http.post("/detokenize", json={"tokens": ids}).json()
    assert back == {"prompt": "hé", "content": "hé", "text": "hé"}
    assert service.http.post("/tokenize", json={"content": ""}).json() == {"tokens": []}
    for wrong in ({"content": 1}, {"content": "a", "prompt": "b"}, {"content": "a", "parse_special": False}):
        assert service.http.post("/tokenize", json=wrong).status_code == 400
    assert service.http.post("/tokenize", json={"prompt": "a", "with_pieces": True}).status_code == 400


def test_plain_paths(service):
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 40}
    answer = service.http.post("/chat/completions", json=body).json()
    assert answer["choices"][0]["message"]["content"] == "hello world"
    answer = service.http.post("/completions", json={"prompt": "say", "max_tokens": 5}).json()
    assert answer["choices"][0]["text"] == "hello"
    assert get(service, "/models") == get(service, "/v1/models")
    assert service.http.post("/embeddings", json={"input": "x"}).status_code != 404
    for path in ("/completions", "/embeddings"):
        assert service.http.get(path).status_code == 405
    assert service.http.post("/models", json={}).status_code == 405


def test_health(service):
    for path in OPEN:
        assert get(service, path)
    assert get(service, "/livez") == {"status": "alive"}
    service.run(service.engine.die)
    service.wait_for(lambda: not service.link.serving)
    for path in ("/healthz", "/readyz", "/v1/health", "/health_generate"):
        assert service.http.get(path).status_code == 503
    assert get(service, "/livez") == {"status": "alive"}


@pytest.mark.parametrize("prefix", ["/", "/get_"])
def test_sglangs_reports(service, prefix):
    info = get(service, f"{prefix}model_info")
    assert info["model_path"] == info["tokenizer_path"] == "toy"
    assert info["is_generation"] is True
    report = get(service, f"{prefix}server_info?model=alias")
    ready = service.link.ready
    assert report["served_model_name"] == "toy"
    assert report["status"] == "ready"
    assert report["context_length"] == ready.max_model_len
    assert report["max_total_num_tokens"] == ready.num_blocks * ready.block_size
    assert report["internal_states"][0]["num_running_reqs"] == 0
    assert get(service, f"{prefix}server_info?model=none", 404)
    assert service.http.post(f"{prefix}model_info", json={}).status_code == 405


def test_load_counts_requests(service):
    assert get(service, "/load") == {"server_load": 0}
    service.run(setattr, service.engine, "held", True)
    working = threading.Thread(target=completion, args=(service,))
    working.start()
    service.wait_for(lambda: service.gateway.in_flight == 1)
    assert get(service, "/load") == {"server_load": 1}
    service.run(setattr, service.engine, "held", False)
    service.run(service.engine.step_on)
    working.join()
    assert get(service, "/load") == {"server_load": 0}


def test_prefixes_are_erased(service):
    answer = service.http.post("/reset_prefix_cache?reset_running_requests=true")
    assert (answer.status_code, answer.json()) == (200, {"pages": 0})
    answer = service.http.post("/flush_cache")
    assert (answer.status_code, answer.text) == (200, "Cache flushed.\n")
    assert service.http.get("/flush_cache").status_code == 405
    service.run(service.engine.die)
    service.wait_for(lambda: not service.link.serving)
    assert service.http.post("/flush_cache").status_code == 503
    assert service.http.post("/reset_prefix_cache").status_code == 503


def test_a_request_is_aborted(service):
    service.run(setattr, service.engine, "held", True)
    answers = {}

    def ask(name):
        body = {"prompt": "say", "max_tokens": 40}
        answers[name] = service.http.post("/v1/completions", json=body, headers={"x-request-id": name})

    threads = [threading.Thread(target=ask, args=(name,)) for name in ("one", "two", "three")]
    for thread in threads:
        thread.start()
    service.wait_for(lambda: service.gateway.in_flight == 3)
    service.wait_for(lambda: len(service.engine.submitted) == 3)
    abort = service.http.post("/abort_request", json={"rid": "one", "abort_message": "enough"})
    assert (abort.status_code, abort.json()) == (200, {"aborted": 1})
    service.wait_for(lambda: "one" in answers)
    assert answers["one"].status_code == 409
    assert answers["one"].json()["error"] | {"type": ""} == {
        "message": "enough", "type": "", "param": None, "code": "aborted",
    }  # fmt: skip
    assert service.http.post("/abort_request", json={"rid": "one"}).json() == {"aborted": 0}
    assert service.http.post("/abort_request", json={"abort_all": True}).json() == {"aborted": 2}
    for thread in threads:
        thread.join()
    assert {answer.status_code for answer in answers.values()} == {409}
    assert service.gateway.in_flight == 0
    for wrong in ({}, {"rid": 1}, {"rid": ""}, {"rid": "x" * 129}, []):
        assert service.http.post("/abort_request", json=wrong).status_code == 400


def test_models_that_stay_do_not_sleep(service):
    assert get(service, "/is_sleeping") == {"is_sleeping": False}
    for path in ("/sleep", "/sleep?level=2", "/wake_up", "/wake_up?tags=weights"):
        answer = service.http.post(path)
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "models_fixed"
    assert service.http.post("/sleep?level=3").json()["error"]["param"] == "level"
    assert service.http.post("/sleep?mode=abort").json()["error"]["param"] == "mode"
    assert service.http.post("/sleep?model=none").status_code == 404
    assert service.http.get("/sleep").status_code == 405


@pytest.fixture
def guarded(make_service, tmp_path):
    path = tmp_path / "keys.toml"
    path.write_text(KEYS)
    return make_service(api_keys=path)


def test_what_steers_needs_an_admin_key(guarded):
    for method, path in ADMIN:
        for headers, status in (({}, 401), (USER, 403)):
            answer = guarded.http.request(method, path, headers=headers, json={"abort_all": True})
            assert answer.status_code == status, (path, answer.text)
        answer = guarded.http.request(method, path, headers=BOSS, json={"abort_all": True})
        assert answer.status_code in (200, 400), (path, answer.text)


def test_what_tells_needs_a_key(guarded):
    for path in READ:
        assert guarded.http.get(path).status_code == 401, path
        assert guarded.http.get(path, headers=USER).status_code == 200, path
    for path in OPEN:
        assert guarded.http.get(path).status_code == 200, path
    assert guarded.http.post("/reset_prefix_cache", headers=BOSS).json() == {"pages": 8}  # of both tenants
