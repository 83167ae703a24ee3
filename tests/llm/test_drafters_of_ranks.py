"""The draft model and the head of the package beside an engine of two ranks: one of them drafts, and no
answer changes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from firelane import LLM
from firelane.backends.cpu.ranks.interconnect import usable_cores
from firelane.backends.ranks.group import RankGroup
from firelane.engine.process.load_head import sized_like
from firelane.engine.speculation.ngram import NgramProposer
from firelane.engine.speculation.proposer import NO_PROPOSAL
from firelane.engine_config import EngineConfig
from firelane.engine_config.hosts import HostsConfig
from firelane.errors import UsageError
from firelane.llm import SamplingParams
from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from tests.free_steps import make_steps_free
from tests.llm.test_drafters_of_the_package import MODELS, PROMPTS

DRAFT, HEAD = f"draft={MODELS / 'embedded_draft'}", f"eagle3={MODELS / 'embedded_eagle'}"
CASES = {
    "draft, tensors": (DRAFT, {"tensor_parallel_size": 2}),
    "draft, stages": (DRAFT, {"pipeline_parallel_size": 2}),
    "head, tensors": (HEAD, {"tensor_parallel_size": 2}),
}
SAMPLINGS = {
    "greedy": {"temperature": 0.0},
    "drawn": {"temperature": 0.8, "seed": 4, "top_p": 0.9, "logprobs": 2},
}
TOKENS = 64
pytestmark = pytest.mark.skipif(len(usable_cores()) < 2, reason="ranks need a core each")


def load(speculative: str, **options: int) -> LLM:
    given = {"isolated": False, "max_num_seqs": 4, "kv_cache_bytes": 1 << 26} | options
    return LLM(str(MODELS / "embedded"), speculative=speculative, backend="cpu", **given)


@pytest.fixture(scope="module", params=CASES.values(), ids=CASES)
def llm(request: pytest.FixtureRequest) -> Iterator[LLM]:
    with load(request.param[0], **request.param[1]) as model:
        make_steps_free(model._engine.core.drafter)
        yield model


@pytest.fixture(scope="module")
def one_rank() -> Iterator[LLM]:
    with load("off") as model:
        yield model


@pytest.fixture
def silent_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text tells nothing: all drafts are the second model's own."""
    monkeypatch.setattr(NgramProposer, "propose", lambda _, asked: [NO_PROPOSAL] * len(asked))


@pytest.mark.usefixtures("silent_text")
@pytest.mark.parametrize("told", SAMPLINGS.values(), ids=SAMPLINGS)
def test_answers_are_those_of_one_rank_without_drafts(llm: LLM, one_rank: LLM, told: dict) -> None:
    drafter, prompts = llm._engine.core.drafter, [*PROMPTS, *PROMPTS[:2]]
    params = SamplingParams(max_tokens=TOKENS, ignore_eos=True, **told)
    expected = [one.outputs[0] for one in one_rank.generate(prompts, params)]
    before = drafter.accepted_tokens, drafter.drafts
    assert [one.outputs[0] for one in llm.generate(prompts, params)] == expected
    assert drafter.accepted_tokens - before[0] > TOKENS // 4
    assert drafter.drafts > before[1]
    assert drafter.is_on


def test_the_second_model_is_on_the_cores_of_the_rank_that_draws(llm: LLM) -> None:
    group, config = llm._engine.executor, llm._engine._config
    assert isinstance(group, RankGroup)
    cores, before = sorted(usable_cores()), os.sched_getaffinity(0)
    place = group._leader.rank  # the last stage's, where there are two
    with group.pinned():
        assert os.sched_getaffinity(0) == set(cores[place * (len(cores) // 2) :][: len(cores) // 2])
    assert os.sched_getaffinity(0) == before
    program = load_program(read_config(MODELS / "embedded_draft"))
    own = sized_like(config, program, group.limits)
    assert (own.ranks, own.ranks_option, own.threads) == (1, "", None)
    several = msgspec.structs.replace(config, threads=2)
    assert sized_like(several, program, group.limits).threads == 1


@pytest.mark.parametrize("size", ["tensor_parallel_size", "pipeline_parallel_size"])
def test_pages_of_the_second_model_are_of_the_same_memory(size: str) -> None:
    """Two ranks have half of each page, and the model that is its own draft model has all of one more."""
    sizes = {"kv_cache_bytes": 1 << 22, "max_num_seqs": 64, size: 2}
    with load("off", **sizes) as alone:
        pages = alone._engine.executor.limits.num_blocks
    with load(f"draft={MODELS / 'embedded'}", **sizes) as both:
        assert both._engine.executor.limits.num_blocks == pages // 2


@pytest.mark.parametrize("speculative", [HEAD, "mtp"])
def test_a_head_beside_stages_is_refused(speculative: str) -> None:
    with pytest.raises(UsageError, match=r"no stage has them; leave out --pipeline-parallel-size 2"):
        load(speculative, pipeline_parallel_size=2)


@pytest.mark.parametrize("speculative", [DRAFT, HEAD, "mtp"])
def test_a_second_model_beside_several_hosts_is_refused(speculative: str, tmp_path: Path) -> None:
    hosts = HostsConfig(count=2, own=0, address="127.0.0.1", port=1)
    sizes = {"cache_dir": tmp_path, "tensor_parallel_size": 2, "hosts": hosts}
    EngineConfig(model_dir=MODELS / "embedded", speculative="ngram", **sizes)
    with pytest.raises(UsageError, match=r"ranks of one host; leave out --nnodes 2, or it"):
        EngineConfig(model_dir=MODELS / "embedded", speculative=speculative, **sizes)
