"""The OpenAI client with servers beside whose model a second one drafts: what is said is what is said
without."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from e2e_support import MODEL, metric, wait_until
from test_drafts_client import CASES, TRIES, ask

from firelane.backends.cpu.ranks.interconnect import usable_cores
from firelane.bench.server import ServerProcess

Connect = Callable[[ServerProcess], openai.OpenAI]
MODELS = Path(__file__).parents[2] / "firelane" / "models"
TWO, STAGES = ["--tensor-parallel-size", "2"], ["--pipeline-parallel-size", "2"]
SERVERS = {
    "draft": (f"draft={MODELS / 'embedded_draft'}", []),
    "head": (f"eagle3={MODELS / 'embedded_eagle'}", []),
    "draft of two stages": (f"draft={MODELS / 'embedded_draft'}", STAGES),
    "head of two ranks": (f"eagle3={MODELS / 'embedded_eagle'}", TWO),
}
COUNTERS = ("drafts", "draft_tokens", "accepted_tokens")


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest, environ: dict[str, str]) -> Iterator[ServerProcess]:
    speculative, options = SERVERS[request.param]
    if options and len(usable_cores()) < 2:
        pytest.skip("ranks need a core each")
    given = ["--backend", "cpu", "--max-num-seqs", "8", "--speculative", speculative, *options]
    with ServerProcess(given, environ=environ) as started:
        yield started


def test_the_start_names_what_drafts(server: ServerProcess) -> None:
    assert re.search(r"^draft +\S", server.log, re.MULTILINE)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("case", ["greedy", "sampled", "logprobs", "schema"])
def test_a_second_model_changes_nothing_that_is_said(
    server: ServerProcess, cpu_server: ServerProcess, connect: Connect, case: str, stream: bool
) -> None:
    client, fields = connect(server), CASES[case]
    expected, usage, _ = ask(connect(cpu_server), stream, speculative=False, **fields)
    assert ask(client, stream, speculative=False, **fields)[0] == expected
    for _ in range(2):
        said, drafted, _ = ask(client, stream, speculative=True, **fields)
        assert said == expected
        assert drafted.completion_tokens == usage.completion_tokens


def complete(client: openai.OpenAI, prompt: str, stream: bool, **extra: Any) -> tuple[str, list[float], Any]:
    """Text, log-probabilities and usage of an answer."""
    made = client.completions.create(
        model=MODEL,
        prompt=prompt,
        max_tokens=80,
        temperature=0,
        logprobs=1,
        stream=stream,
        stream_options={"include_usage": True} if stream else openai.omit,
        extra_body={"ignore_eos": True, **extra},
    )
    chunks: list[Any] = list(made) if stream else [made]
    choices = [choice for chunk in chunks for choice in chunk.choices]
    values = [value for one in choices if one.logprobs for value in one.logprobs.token_logprobs]
    return "".join(one.text for one in choices), values, chunks[-1].usage


@pytest.mark.parametrize("stream", [False, True])
def test_new_text_is_drafted_and_counted(server: ServerProcess, connect: Connect, stream: bool) -> None:
    client = connect(server)
    names = [f"vllm:spec_decode_num_{name}_total" for name in COUNTERS]
    before = [metric(server.url, name) for name in names]
    accepted = rejected = 0
    for number in range(TRIES):
        prompt = f"class Parcel{number}{'ab'[stream]}:\n    def __init__(self, weight, stops=None):"
        text, logprobs, usage = complete(client, prompt, stream, speculative=False)
        assert usage.completion_tokens_details.accepted_prediction_tokens == 0
        said, values, drafted = complete(client, prompt, stream, speculative=True)
        assert (said, values, drafted.completion_tokens) == (text, logprobs, 80)
        assert len(values) == 80
        accepted += drafted.completion_tokens_details.accepted_prediction_tokens
        rejected += drafted.completion_tokens_details.rejected_prediction_tokens
        if accepted > 20:
            break
    assert accepted > 20

    def counted() -> list[float]:
        return [metric(server.url, name) - old for name, old in zip(names, before, strict=True)]

    wait_until(lambda: counted()[1] >= accepted + rejected)
    drafts, tokens, right = counted()
    assert 0 < drafts <= tokens
    assert accepted <= right <= tokens
    assert metric(server.url, "vllm:spec_decode_num_accepted_tokens_per_pos_total") >= accepted
