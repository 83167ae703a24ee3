"""The draft model and the EAGLE-3 head that ship in the package: small, whole, and they foresee the model."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from tools.drafting.acceptance import acceptance, runs
from tools.drafting.eagle import EagleHead
from tools.drafting.eagle_training import draft
from tools.drafting.llama_draft import matches
from tools.drafting.target import Target, load_target
from tools.embedded.corpus import Document
from tools.embedded.write_text import write_part

MODELS = Path(__file__).resolve().parents[2] / "firelane" / "models"
EMBEDDED, DRAFT, EAGLE = (MODELS / name for name in ("embedded", "embedded_draft", "embedded_eagle"))
# Of both, as a wheel packs them.
PACKED_BYTES = 4_000_000
PROMPT, WRITTEN, PLACES = 48, 80, 3

# Written for this test, so in no training file.
SNIPPETS = (
    '''\
class Parcel:
    """A parcel on its way, with a weight and the stops that it has made."""

    def __init__(self, weight, stops=None):
        self.weight = weight
''',
    '''\
import json
import os


def read_settings(path, default=None):
    """Return what the file says, or the default where there is no file."""
    if not os.path.exists(path):
        return default
''',
    """\
class LampTest(unittest.TestCase):
    def setUp(self):
        self.lamp = Lamp("desk", watts=40)

    def test_switch(self):
        self.assertFalse(self.lamp.is_on)
        self.lamp.switch()
""",
    '''\
def largest(numbers, key=None):
    """Return the largest of the numbers, None where there are none."""
    best = None
    for number in numbers:
        if best is None or number > best:
''',
)


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield load_target(EMBEDDED, "cpu")
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def written(target: Target) -> Tensor:
    """Greedy continuations of the snippets, int64 [snippets, prompt + written]."""
    prompts = torch.tensor([target.tokenizer(snippet).input_ids[:PROMPT] for snippet in SNIPPETS])
    mask = torch.ones_like(prompts)
    told = {"max_new_tokens": WRITTEN, "do_sample": False, "eos_token_id": None, "pad_token_id": 2}
    return target.model.generate(prompts, attention_mask=mask, **told)


def head_of(directory: Path) -> EagleHead:
    """The head as it was saved, in float32."""
    config = LlamaConfig(**json.loads((directory / "config.json").read_text(encoding="utf-8")))
    weights = load_file(directory / "model.safetensors")
    ids = torch.arange(config.draft_vocab_size) + weights.pop("d2t")
    del weights["t2d"]
    head = EagleHead(config, ids)
    head.load_state_dict({name: weight.float() for name, weight in weights.items()})
    return head.eval()


def test_files_are_there_and_add_little_to_the_wheel() -> None:
    assert {path.name for path in EAGLE.iterdir()} == {"MODEL_CARD.md", "config.json", "model.safetensors"}
    more = {"tokenizer.json", "tokenizer_config.json", "generation_config.json"}
    assert {path.name for path in DRAFT.iterdir()} == {
        "MODEL_CARD.md",
        "config.json",
        "model.safetensors",
        *more,
    }
    packed = [len(zlib.compress(path.read_bytes())) for d in (DRAFT, EAGLE) for path in d.iterdir()]
    assert sum(packed) < PACKED_BYTES


def test_tokenizer_of_the_draft_model_is_the_embedded_models() -> None:
    assert (DRAFT / "tokenizer.json").read_bytes() == (EMBEDDED / "tokenizer.json").read_bytes()


def test_weights_are_finite_and_bf16() -> None:
    for directory in (DRAFT, EAGLE):
        weights = load_file(directory / "model.safetensors")
        real = {name: w for name, w in weights.items() if name not in ("d2t", "t2d")}
        assert {w.dtype for w in real.values()} == {torch.bfloat16}
        assert all(torch.isfinite(w.float()).all() for w in real.values())


def test_head_foresees_the_embedded_model(target: Target, written: Tensor) -> None:
    with torch.no_grad():
        right = draft(head_of(EAGLE), target, written, PLACES).right
    assert acceptance(right, PROMPT - 1).tokens_a_step > 1.6


def test_draft_model_foresees_the_embedded_model(written: Tensor) -> None:
    model = LlamaForCausalLM.from_pretrained(DRAFT, dtype=torch.float32).eval()
    assert model.num_parameters() == pytest.approx(1e6, rel=0.1)
    assert acceptance(runs(matches(model, written)[:, 1:], PLACES), PROMPT - 1).tokens_a_step > 1.5


def test_training_text_is_written_as_code_and_chats(tmp_path: Path) -> None:
    source = 'def twice(x):\n    """Return two times x."""\n    return 2 * x\n'
    write_part(tmp_path, (Document(path="a/b.py", text=source),), seed=7)
    assert (tmp_path / "code" / "a" / "b.py").read_text(encoding="utf-8") == source
    chat = (tmp_path / "chats" / "000000.txt").read_text(encoding="utf-8")
    assert chat.startswith("<|user|>\n")
    assert "Return two times x." in chat
