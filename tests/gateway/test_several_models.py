"""Two models behind one gateway, each with its own tokenizer, template and engine."""

from __future__ import annotations

import asyncio

import httpx
import openai
import pytest
import tokenizers
from batch_support import hurry, results, start, wait
from fake_engine import FakeEngine
from service import PATIENCE_S

from firelane.engine_state import LinkState
from firelane.errors import UsageError
from firelane.gateway.config import GatewayConfig, ModelConfig
from firelane.gateway.engines.link.link import EngineLink
from firelane.gateway.engines.replicas import ReplicaSet
from firelane.gateway.requests.admission import HELD
from firelane.gateway.server import Gateway
from firelane.gateway.tenants.keyfile import hashed
from tests.text.toy_model import byte_tokenizer, write_model

TEMPLATE = "{% for m in messages %}SMALL {{ m.content }}{% endfor %}"
CHAT = {"messages": [{"role": "user", "content": "hey"}], "max_tokens": 3}
KEY = "fl-acme-0123456789abcdef"


class TwoModels:
    """Models `big` (alias `b`) and `small`, which answers with its own name."""

    def __init__(self, loop, model_dir, small_dir, **changes):
        self.loop = loop
        self.core = byte_tokenizer()
        self.engines: dict[str, FakeEngine] = {}
        self.links: dict[str, EngineLink] = {}
        models = (
            ModelConfig(model_dir=model_dir, names=("big",), aliases=(("b", "big"),)),
            ModelConfig(model_dir=small_dir, names=("small",)),
        )
        self.call(self._start(GatewayConfig(models=models, port=0, **changes)))
        url = f"http://127.0.0.1:{self.gateway.port}"
        self.http = httpx.Client(base_url=url, timeout=PATIENCE_S, trust_env=False)
        self.openai = openai.OpenAI(
            base_url=f"{url}/v1",
            api_key="k",
            max_retries=0,
            http_client=httpx.Client(trust_env=False, timeout=PATIENCE_S),
        )

    async def _start(self, config):
        for model in config.models:
            name = model.names[0]
            answer = [*self.core.encode(f"I am {name}", add_special_tokens=False).ids, 1]
            self.engines[name] = FakeEngine(lambda *_, answer=answer: answer, self.core.get_vocab_size())
            self.links[name] = EngineLink()
        self.gateway = Gateway(config, [ReplicaSet([link]) for link in self.links.values()])
        await self.gateway.start()
        for name, link in self.links.items():
            await link.attach(self.engines[name].connect())
            self.engines[name].send(self.engines[name].ready(max_model_len=512 if name == "big" else 64))
        await self._ready()

    async def _ready(self):
        while any(link.state is not LinkState.READY for link in self.links.values()):
            await asyncio.sleep(0)

    def call(self, work):
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE_S)

    def run(self, function, *args):
        async def inner():
            return function(*args)

        return self.call(inner())

    def wait_for(self, condition):
        async def poll():
            async with asyncio.timeout(PATIENCE_S):
                while not condition():
                    await asyncio.sleep(0.001)

        self.call(poll())

    def close(self):
        self.http.close()
        self.openai.close()
        self.call(self.gateway.close())
        for engine in self.engines.values():
            self.run(engine.die)


@pytest.fixture
def make_two(loop, core: tokenizers.Tokenizer, model_dir, tmp_path_factory):
    made: list[TwoModels] = []

    def make(**changes) -> TwoModels:
        small = write_model(tmp_path_factory.mktemp("small"), core, template=TEMPLATE)
        made.append(TwoModels(loop, model_dir, small, **changes))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def two(make_two) -> TwoModels:
    return make_two()


def prompt(two: TwoModels, name: str) -> str:
    ids = memoryview(two.engines[name].submitted[-1].prompt).cast("i").tolist()
    return two.core.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize(
    ("asked", "model"), [("big", "big"), ("b", "big"), ("small", "small"), (None, "big")]
)
def test_a_request_goes_to_the_engine_of_its_model(two, asked, model):
    body = {**CHAT, "max_tokens": 30} | ({} if asked is None else {"model": asked})
    answer = two.http.post("/v1/chat/completions", json=body).json()
    assert answer["choices"][0]["message"]["content"] == f"I am {model}"
    assert answer["model"] == (asked or "big")
    assert len(two.engines[model].submitted) == 1
    assert sum(len(engine.submitted) for engine in two.engines.values()) == 1
    assert prompt(two, model).startswith("SMALL" if model == "small" else "<|bos|>")


def test_fingerprints_differ(two):
    found = {
        name: two.http.post("/v1/chat/completions", json={**CHAT, "model": name}).json()["system_fingerprint"]
        for name in ("big", "b", "small")
    }
    assert found["big"] == found["b"] != found["small"]


def test_every_name_is_listed_with_its_model(two):
    cards = two.http.get("/v1/models").json()["data"]
    assert [(card["id"], card["root"], card["max_model_len"]) for card in cards] == [
        ("big", "big", 512),
        ("b", "big", 512),
        ("small", "small", 64),
    ]
    assert two.http.get("/v1/models/small").json()["root"] == "small"


def test_tokens_and_limits_are_the_models_own(two):
    def count(model):
        body = {"model": model, "messages": CHAT["messages"]}
        return two.http.post("/tokenize", json=body).json()

    assert count("small")["max_model_len"] == 64
    assert count("small")["count"] == len("SMALL hey")
    assert count("big")["count"] != count("small")["count"]
    long = {"prompt": "x" * 100, "max_tokens": 1}
    assert two.http.post("/v1/completions", json={**long, "model": "small"}).status_code == 400
    assert two.http.post("/v1/completions", json={**long, "model": "big"}).status_code == 200
    assert two.http.post("/v1/embeddings", json={"input": "a", "model": "small"}).json()["model"] == "small"


def test_one_model_that_is_down_does_not_stop_the_other(two):
    two.run(two.engines["small"].die)
    two.wait_for(lambda: two.links["small"].state is LinkState.DEAD)
    assert two.http.post("/v1/completions", json={"model": "small", "prompt": "a"}).status_code == 503
    assert two.http.post("/v1/completions", json={"model": "big", "prompt": "a"}).status_code == 200
    health = two.http.get("/health")
    assert health.status_code == 503
    assert health.json()["status"] == "down"
    assert health.json()["reason"].startswith("small: ")
    assert two.http.get("/health?model=big").json() == {"status": "ready"}
    assert two.http.get("/health?model=b").status_code == 200
    assert two.http.get("/health?model=small").status_code == 503
    assert two.http.get("/health?model=none").status_code == 404
    assert two.http.get("/stats?model=small").json()["engine"]["state"] == "down"


def test_room_is_counted_by_model(make_two):
    two = make_two(max_queue=0)
    models = two.gateway.services.models
    models.default.admission.record.own[HELD] = 8
    assert two.http.post("/v1/completions", json={"model": "big", "prompt": "a"}).status_code == 429
    assert two.http.post("/v1/completions", json={"model": "small", "prompt": "a"}).status_code == 200
    models.default.admission.record.own[HELD] = 0


def test_metrics_and_stats_tell_models_apart(two):
    for name, times in (("big", 1), ("small", 2)):
        for _ in range(times):
            body = {"model": name, "prompt": "say", "max_tokens": 5, "ignore_eos": True}
            assert two.http.post("/v1/completions", json=body).status_code == 200
    text = two.http.get("/metrics").text
    assert 'vllm:generation_tokens_total{model_name="big"} 5.0' in text
    assert 'vllm:generation_tokens_total{model_name="small"} 10.0' in text
    assert 'firelane:tenant_requests_total{model_name="small",tenant="open"} 2.0' in text
    assert text.count("# TYPE vllm:generation_tokens_total counter") == 1
    assert 'firelane:http_responses_total{status="200"} 3.0' in text
    stats = two.http.get("/stats?model=small").json()
    assert (stats["model"], stats["models"]) == ("small", ["big", "small"])
    assert stats["tokens"]["generated"] == 10
    assert stats["engine"]["max_model_len"] == 64
    assert stats["tenants"][0]["requests"] == 2
    assert two.http.get("/stats").json()["tokens"]["generated"] == 5
    assert two.http.get("/stats?model=none").status_code == 404


def test_a_tenant_may_use_some_of_the_models(make_two, tmp_path):
    path = tmp_path / "keys.toml"
    path.write_text(f'[tenants.acme]\nkeys = ["{hashed(KEY)}"]\nmodels = ["small"]\n')
    two = make_two(api_keys=path)
    headers = {"authorization": f"Bearer {KEY}"}
    cards = two.http.get("/v1/models", headers=headers).json()["data"]
    assert [card["id"] for card in cards] == ["small"]
    for name, status in (("small", 200), ("big", 404), ("b", 404)):
        body = {"model": name, "prompt": "a", "max_tokens": 1}
        assert two.http.post("/v1/completions", json=body, headers=headers).status_code == status


def test_health_tells_tenants_of_their_models_alone_and_strangers_of_none(make_two, tmp_path):
    path = tmp_path / "keys.toml"
    path.write_text(f'[tenants.acme]\nkeys = ["{hashed(KEY)}"]\nmodels = ["small"]\n')
    two = make_two(api_keys=path)
    headers = {"authorization": f"Bearer {KEY}"}
    two.run(two.engines["big"].die)
    two.wait_for(lambda: two.links["big"].state is LinkState.DEAD)

    def health(query: str = "", **given: dict[str, str]) -> tuple[int, dict]:
        answer = two.http.get(f"/health{query}", **given)
        return answer.status_code, answer.json()

    assert health() == health(headers={"authorization": "Bearer wrong"}) == (503, {"status": "down"})
    assert health(headers=headers) == (503, {"status": "down"})  # another tenant's model is
    for name in ("big", "b", "small", "none"):
        assert health(f"?model={name}")[0] == 401
    assert health("?model=small", headers=headers) == (200, {"status": "ready"})
    for name in ("big", "b", "none"):
        status, told = health(f"?model={name}", headers=headers)
        assert (status, told["error"]["code"]) == (404, "model_not_found")


def test_prices_are_those_of_the_model(make_two, tmp_path):
    prices = tmp_path / "prices.toml"
    prices.write_text("[models.big]\ninput = 1000000\n[models.small]\ninput = 3000000\n")
    two = make_two(prices=prices)
    for name in ("b", "small"):
        two.http.post("/v1/completions", json={"model": name, "prompt": [5, 6], "max_tokens": 1})
    text = two.http.get("/metrics").text
    assert 'firelane:tenant_cost_total{model_name="big",tenant="open"} 2.0' in text
    assert 'firelane:tenant_cost_total{model_name="small",tenant="open"} 6.0' in text


def test_lines_of_a_batch_take_the_idle_seats_of_their_model(make_two, tmp_path, monkeypatch):
    """A batch for a busy model waits; one for the other model does not wait for it."""
    hurry(monkeypatch)
    two = make_two(data_dir=tmp_path)
    big = two.gateway.services.models.default
    big.admission.record.own[HELD] = two.engines["big"].max_num_seqs
    url = "/v1/chat/completions"

    def batch(model, tenant_file):
        body = {**CHAT, "model": model}
        line = {"custom_id": tenant_file, "method": "POST", "url": url, "body": body}
        return start(two, [line, {**line, "custom_id": tenant_file + "2"}], url=url)

    small_batch = batch("small", "s")
    done = wait(two, small_batch)
    assert {r["response"]["body"]["model"] for r in results(two, done.output_file_id)} == {"small"}
    big_batch = batch("big", "b")
    wait(two, big_batch, "in_progress")
    assert two.engines["big"].submitted == []
    big.admission.record.own[HELD] = 0
    done = wait(two, big_batch)
    assert done.request_counts.completed == 2
    assert len(two.engines["big"].submitted) == 2


def test_names_are_given_once(tmp_path):
    one = ModelConfig(model_dir=tmp_path, names=("a",))
    for other in (("a",), ("b", "b")):
        with pytest.raises(UsageError, match="given twice"):
            GatewayConfig(models=(one, ModelConfig(model_dir=tmp_path, names=other)))
    with pytest.raises(UsageError, match="'a' is given twice"):
        GatewayConfig(
            models=(one, ModelConfig(model_dir=tmp_path, names=("b",), aliases=(("a", "b"),))),
        )


def test_drain_refuses_all_models(two):
    assert two.call(two.gateway.drain(60)) is True
    assert all(model.state.value == "draining" for model in two.gateway.services.models)
    assert {model.reason for model in two.gateway.services.models} == {"shutting down"}
