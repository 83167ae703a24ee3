"""The draft model and the EAGLE-3 head of the package draft for the embedded model, and change no answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from firelane import LLM
from firelane.engine.speculation.ngram import NgramProposer
from firelane.engine.speculation.proposer import NO_PROPOSAL
from firelane.llm import SamplingParams
from tests.free_steps import make_steps_free

MODELS = Path(__file__).parents[2] / "firelane" / "models"
PROMPTS = (
    'class Parcel:\n    """A parcel on its way."""\n\n    def __init__(self, weight, stops=None):',
    "import json\nimport os\n\n\ndef read_settings(path, default=None):",
    "class LampTest(unittest.TestCase):\n    def setUp(self):",
)
TOKENS = 96


@pytest.fixture(scope="module", params=["draft=embedded_draft", "eagle3=embedded_eagle"])
def llm(request: pytest.FixtureRequest) -> Iterator[LLM]:
    kind, name = request.param.split("=")
    given = {"isolated": False, "max_num_seqs": 4, "kv_cache_bytes": 1 << 26}
    with LLM(str(MODELS / "embedded"), speculative=f"{kind}={MODELS / name}", **given) as model:
        # The times of steps on a busy machine must not decide about what is tested.
        make_steps_free(model._engine.core.drafter)
        yield model


@pytest.mark.parametrize(
    "told", [{"temperature": 0.0}, {"temperature": 0.8, "seed": 4}], ids=["greedy", "drawn"]
)
def test_answers_are_those_of_plain_decoding(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, told: dict[str, float]
) -> None:
    """Without what the text tells: all drafts are the model's or the head's own."""
    monkeypatch.setattr(NgramProposer, "propose", lambda _, asked: [NO_PROPOSAL] * len(asked))
    drafter = llm._engine.core.drafter
    plain = llm.generate(list(PROMPTS), SamplingParams(max_tokens=TOKENS, speculative=False, **told))
    before = drafter.accepted_tokens, drafter.drafts
    drafted = llm.generate(list(PROMPTS), SamplingParams(max_tokens=TOKENS, **told))
    assert [r.outputs[0].token_ids for r in drafted] == [r.outputs[0].token_ids for r in plain]
    accepted, drafts = drafter.accepted_tokens - before[0], drafter.drafts - before[1]
    assert drafts > 10
    assert 1 + accepted / drafts > (1.6 if told["temperature"] == 0 else 1.2)
