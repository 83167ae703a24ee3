"""Decisions of a server that computes, through the OpenAI client."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import httpx
import openai
import pytest
from e2e_support import MODEL, metric

from firelane.bench.server import ServerProcess
from tests.models.families import make_checkpoint

Connect = Callable[[ServerProcess], openai.OpenAI]
Body = dict[str, Any]
STATE = "def read_lines(path):\n    return open(path).read().splitlines()\n" * 10
QUESTIONS: Body = {
    **{f"noul-{i}": {"type": "noul", "instructions": f"Does it read file {i}?"} for i in range(20)},
    "choice": {
        "type": "choice",
        "instructions": "Which?",
        "criteria": {"reads": "from a drive", "writes": None},
    },
    "many": {"type": "choice", "instructions": "Which?", "criteria": {f"line {i}": None for i in range(60)}},
    "score": {"type": "score", "instructions": "How good is it?", "criteria": ["bad", "fair", "good"]},
}


def systemone(client: openai.OpenAI, questions: Body, state: str = STATE) -> Body:
    body = {"model": MODEL, "state": state, "questions": questions}
    return cast(Body, client.post("/systemone", body=body, cast_to=object))


def test_the_same_bits_alone_cold_cached_and_in_company(cpu_server: ServerProcess, connect: Connect) -> None:
    client = connect(cpu_server)
    cold = systemone(client, QUESTIONS)["answers"]
    assert systemone(client, QUESTIONS)["answers"] == cold  # all from the prefix cache
    for name, question in list(QUESTIONS.items())[::7]:  # each by itself
        assert systemone(client, {name: question})["answers"] == {name: cold[name]}
    backwards = dict(reversed(QUESTIONS.items()))
    assert systemone(client, backwards)["answers"] == cold
    stream = client.completions.create(model=MODEL, prompt="x", max_tokens=400, stream=True)
    next(iter(stream))
    with ThreadPoolExecutor(4) as pool:
        busy = list(pool.map(lambda _: systemone(client, QUESTIONS)["answers"], range(4)))
    assert busy == [cold] * 4
    stream.close()


def test_probabilities_are_the_softmax_of_the_models_own(cpu_server: ServerProcess, connect: Connect) -> None:
    """By the other way: the label as the prompt's last tokens, and prompt_logprobs of vLLM."""
    client = connect(cpu_server)
    question = {"type": "noul", "instructions": "Does it read?"}
    made = systemone(client, {"q": question}, state="Some text.")["answers"]["q"]
    text = "Some text.\n\nQuestion: Does it read?\nAnswer with yes or no only."
    chat = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 1}
    rendered = httpx.post(f"{cpu_server.url}/v1/chat/completions/render", json=chat, timeout=60).json()
    sums = [label_logprob(cpu_server, rendered["token_ids"], label) for label in ("yes", "no")]
    odds = [pow(2.718281828459045, one) for one in sums]
    assert made["noul"] == pytest.approx(odds[0] / sum(odds), rel=1e-5)
    assert made["label_mass"] == pytest.approx(sum(odds), rel=1e-5)


def label_logprob(server: ServerProcess, prompt: list[int], label: str) -> float:
    tokens = httpx.post(
        f"{server.url}/tokenize", json={"prompt": label, "add_special_tokens": False}, timeout=60
    ).json()["tokens"]
    body = {"model": MODEL, "prompt": [*prompt, *tokens], "max_tokens": 1, "prompt_logprobs": 0}
    found = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).json()["choices"][0]
    parts = found["prompt_logprobs"][len(prompt) :]
    return sum(part[str(token)]["logprob"] for part, token in zip(parts, tokens, strict=True))


def test_the_state_is_computed_once(cpu_server: ServerProcess, connect: Connect) -> None:
    client = connect(cpu_server)
    state = "Another text, which nobody has asked about before. " * 16
    levels = {"type": "score", "criteria": ["low", "high"]}  # labels of one token: one read each
    questions = {f"q{i}": {**levels, "instructions": f"Is it {i}?"} for i in range(64)}
    names = ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total")
    before = [metric(cpu_server.url, name) for name in names]
    used = systemone(client, questions, state)["usage"]["input_tokens"]
    asked, hits = (metric(cpu_server.url, name) - old for name, old in zip(names, before, strict=True))
    assert (
        used <= asked - hits <= used + 64 * 16
    )  # of the state its last block again with each, as it is open


def test_openai_decisions_through_the_client(cpu_server: ServerProcess, connect: Connect) -> None:
    body = {
        "model": MODEL,
        "input": [{"role": "user", "content": STATE}],
        "questions": [
            {"type": "predicate", "instructions": "Does it read?"},
            {"type": "choice", "instructions": "Which?", "choices": [{"value": "x"}, {"value": "y"}]},
            {"type": "score", "instructions": "How?", "levels": [{"label": "low"}, {"label": "high"}]},
        ],
    }
    client = connect(cpu_server)
    made = cast(Body, client.post("/decisions", body=body, cast_to=object))
    assert [one["type"] for one in made["answers"]] == ["predicate", "choice", "score"]
    with pytest.raises(openai.BadRequestError, match="1 to 200"):
        client.post("/decisions", body={**body, "questions": []}, cast_to=object)


def test_the_example_of_the_docs(cpu_server: ServerProcess) -> None:
    """Its figures are those of one kind of processor: others round other products."""
    text = (Path(__file__).parents[2] / "docs" / "decisions.md").read_text()
    body, output = re.findall(r"-d '(\{.*?\})'\n.*?here\):\n\n(    \{.*?\n)\n", text, re.DOTALL)[0]
    answer = httpx.post(f"{cpu_server.url}/v1/systemone", content=body, timeout=60).json()
    told = json.loads(output)
    assert answer["usage"] == told["usage"]
    assert answer["answers"].keys() == told["answers"].keys()
    assert answer["answers"]["refund"]["noul"] == pytest.approx(told["answers"]["refund"]["noul"], rel=0.1)
    assert answer["answers"]["topic"]["choice"] == told["answers"]["topic"]["choice"]
    assert answer["answers"]["anger"]["score"] == pytest.approx(told["answers"]["anger"]["score"], rel=0.1)


def test_a_recurrent_model_computes_the_state_once_too(
    environ: dict[str, str], tmp_path: Path, connect: Connect
) -> None:
    model = make_checkpoint("lfm2", "float32", tmp_path / "toy")
    state = "Another text, of which nobody has asked. " * 4  # the toy takes 256 tokens
    questions = {
        f"q{i}": {"type": "score", "instructions": f"{i}?", "criteria": ["a", "b"]} for i in range(16)
    }
    body = {"state": state, "questions": questions}
    with ServerProcess(
        [str(model), "--max-num-seqs", "16", "--kv-cache-gib", "0.2"], environ=environ
    ) as server:
        names = ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total")
        client = connect(server)
        together = cast(Body, client.post("/systemone", body=body, cast_to=object))
        asked, hits = (metric(server.url, name) for name in names)
        assert asked - hits <= together["usage"]["input_tokens"] + 17 * 16
        for name in list(questions)[:3]:
            one = {"state": state, "questions": {name: questions[name]}}
            alone = cast(Body, client.post("/systemone", body=one, cast_to=object))
            assert alone["answers"][name] == together["answers"][name]


@pytest.mark.parametrize(
    "options",
    [["--prefill", "1", "--decode", "1"], ["--replicas", "2", "--max-num-seqs", "3"], ["--gateways", "2"]],
    ids=["roles", "replicas", "gateways"],
)
def test_the_same_bits_from_servers_of_every_kind(
    cpu_server: ServerProcess, environ: dict[str, str], connect: Connect, options: list[str]
) -> None:
    questions = {name: QUESTIONS[name] for name in ("noul-0", "noul-1", "choice", "many")}
    expected = systemone(connect(cpu_server), questions)["answers"]
    with ServerProcess([*options, "--kv-cache-gib", "0.2"], environ=environ) as server:
        assert systemone(connect(server), questions)["answers"] == expected
