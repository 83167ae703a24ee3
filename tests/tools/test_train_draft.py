"""The tool that trains draft models: an ordinary checkpoint of the target's vocabulary; its acceptance."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from tests.tools.drafting_support import options, run, write_target, write_text
from tools import train_draft
from tools.drafting.acceptance import acceptance, runs
from tools.drafting.llama_draft import DraftShape, make_draft, matches
from tools.drafting.target import load_target

SIZES: list[object] = ["--hidden", 16, "--layers", 1, "--heads", 2, "--kv-heads", 1, "--intermediate", 24]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    threads = torch.get_num_threads()
    made = tmp_path_factory.mktemp("draft")
    write_target(made / "target")
    write_text(made / "text")
    yield made
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def trained(directory: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        run(train_draft.main, patch, options(directory / "target", directory / "text", directory, *SIZES))
    return directory / "out"


def test_what_is_written_loads_as_a_checkpoint_of_the_targets_vocabulary(trained: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(trained)
    config = model.config
    assert (config.vocab_size, config.hidden_size, config.num_hidden_layers) == (258, 16, 1)
    assert (config.head_dim, config.num_key_value_heads, config.intermediate_size) == (8, 1, 24)
    assert config.tie_word_embeddings
    assert model.dtype == torch.bfloat16
    assert config.rope_parameters["rope_theta"] == 5000.0


def test_tokenizer_is_the_targets(trained: Path, directory: Path) -> None:
    own, targets = (AutoTokenizer.from_pretrained(d) for d in (trained, directory / "target"))
    assert own("a = b\n").input_ids == targets("a = b\n").input_ids


def test_loss_falls(trained: Path) -> None:
    card = (trained / "MODEL_CARD.md").read_text(encoding="utf-8")
    first, last = re.search(r"loss \| ([\d.]+) nats at the first step, ([\d.]+) at the end", card).groups()
    assert float(last) < 0.97 * float(first)
    assert "| greedy | " in card


def test_the_same_seed_gives_the_same_weights(trained: Path, directory: Path, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        given = options(directory / "target", directory / "text", directory, *SIZES)
        given[given.index("--out") + 1] = tmp_path
        run(train_draft.main, patch, given)
    assert (tmp_path / "model.safetensors").read_bytes() == (trained / "model.safetensors").read_bytes()


def test_a_saved_model_is_trained_on(trained: Path, directory: Path, tmp_path: Path) -> None:
    """Three steps of next to no length leave it as it was."""
    more = ["--start-from", trained, "--steps", 3, "--learning-rate", 1e-9]
    given = options(directory / "target", directory / "text", directory, *SIZES, *more)
    given[given.index("--out") + 1] = tmp_path / "out"
    with pytest.MonkeyPatch.context() as patch:
        run(train_draft.main, patch, given)
        given[given.index("--hidden") + 1] = 8
        with pytest.raises(SystemExit, match="has no model of these sizes"):
            run(train_draft.main, patch, given)
        (tmp_path / "model.safetensors").write_bytes(b"cut")
        given[given.index("--start-from") + 1] = tmp_path
        with pytest.raises(SystemExit, match=r"safetensors cannot be read"):
            run(train_draft.main, patch, given)
    before, after = (
        AutoModelForCausalLM.from_pretrained(d).state_dict() for d in (trained, tmp_path / "out")
    )
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_embedding_starts_in_the_principal_directions_of_the_targets(directory: Path) -> None:
    """With as many directions as the target has, all products of two tokens' rows stay as they are."""
    target = load_target(directory / "target", "cpu")
    shape = DraftShape(hidden=32, layers=1, heads=2, kv_heads=1, intermediate=8)
    rows = make_draft(target, shape, seed=1).get_input_embeddings().weight.detach()
    torch.testing.assert_close(rows @ rows.T, target.head @ target.head.T, atol=1e-3, rtol=1e-3)


def steps_of_a_real_run(model: LlamaForCausalLM, row: torch.Tensor, first: int, places: int) -> list[int]:
    """Accepted tokens by step where the model drafts greedily behind what the target has written."""
    accepted, end = [], first + 1
    while end + places <= len(row):
        context = row[:end].tolist()
        for _ in range(places):
            context.append(int(model(torch.tensor([context])).logits[0, -1].argmax()))
        right = [a == b for a, b in zip(context[end:], row[end : end + places].tolist(), strict=True)]
        accepted.append(right.index(False) if False in right else places)
        end += accepted[-1] + 1
    return accepted


@torch.no_grad()
def test_acceptance_is_that_of_drafting_token_by_token(directory: Path) -> None:
    model = load_target(directory / "target", "cpu").model
    start = torch.randint(258, (3, 6), generator=torch.Generator().manual_seed(8))
    rows = model.generate(start, max_new_tokens=30, do_sample=False, eos_token_id=None, pad_token_id=0)
    for parameter in model.parameters():
        parameter.add_(
            0.05 * parameter.std() * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(9))
        )
    right = torch.stack([row[1:] == model(row[None]).logits[0, :-1].argmax(-1) for row in rows])
    assert 0.2 < right[:, 6:].float().mean() < 0.95
    counted = acceptance(runs(right[:, 1:], 3), first=5)
    real = [n for row in rows for n in steps_of_a_real_run(model, row, 6, 3)]
    assert counted.tokens_a_step == pytest.approx(1 + sum(real) / len(real))


def test_matches_compare_with_the_token_that_follows(directory: Path) -> None:
    model = load_target(directory / "target", "cpu").model
    rows = torch.randint(258, (2, 7), generator=torch.Generator().manual_seed(10))
    assert matches(model, rows).shape == (2, 6)


def test_acceptance_walks_from_step_to_step() -> None:
    right = torch.zeros(1, 6, 2, dtype=torch.bool)
    right[0, 0] = torch.tensor([True, True])
    right[0, 3] = torch.tensor([False, True])
    right[0, 4] = torch.tensor([True, False])
    found = acceptance(right, 0)
    assert found.tokens_a_step == pytest.approx((3 + 1 + 2) / 3)


def test_acceptance_without_a_step_is_an_error() -> None:
    with pytest.raises(ValueError, match="leave no step"):
        acceptance(torch.zeros(1, 4, 3, dtype=torch.bool), 4)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--hidden", 64], r"--hidden 64 is more than the target's 32"),
        (["--heads", 3], r"needs an even size for each of 3 heads"),
        (["--kv-heads", 3], r"3 key and value heads divide"),
        (["--layers", 0], r"sizes of a draft model start at 1"),
        (["--steps", 0], r"--steps must be at least 1"),
        (["--written", 1.5], r"--written is from 0 to 1"),
        (["--prompt", 44], r"--prompt must be"),
        (["--length", 97], r"--length 97 is more than the target's 96 positions"),
        (["--start-from", __file__], r"no model.safetensors is there"),
        (["--start-from", "nowhere"], r"--start-from nowhere: no model.safetensors is there"),
        (["--learning-rate", "nan"], r"must be more than 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    directory: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, more: list[object], message: str
) -> None:
    given = options(directory / "target", directory / "text", directory, *SIZES, *more)
    given[given.index("--out") + 1] = tmp_path / "out"
    with pytest.raises(SystemExit, match=message):
        run(train_draft.main, monkeypatch, given)
    assert not (tmp_path / "out").exists()


def test_text_that_cannot_be_used_is_refused(
    directory: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    empty, latin, short = tmp_path / "empty", tmp_path / "latin", tmp_path / "short"
    for path, content in ((latin, b"caf\xe9 " * 50), (short, b"too short")):
        path.mkdir()
        (path / "a.txt").write_bytes(content)
        (path / "b.txt").write_bytes(content)
    empty.mkdir()
    for text, message in (
        (tmp_path / "none", "there is no such file"),
        (empty, "no files below"),
        (latin, "is not UTF-8 text"),
        (short, "at least 48 are needed"),
        (short / "a.txt", "one file cannot be trained on and held out"),
    ):
        with pytest.raises(SystemExit, match=message):
            run(train_draft.main, monkeypatch, options(directory / "target", text, tmp_path, *SIZES))


def test_targets_that_cannot_be_loaded_are_refused(
    directory: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nothing, unknown = tmp_path / "nothing", tmp_path / "unknown"
    nothing.mkdir()
    unknown.mkdir()
    no_json, cut = (shutil.copytree(directory / "target", tmp_path / name) for name in ("no_json", "cut"))
    (no_json / "config.json").write_text("{", encoding="utf-8")
    weights = (cut / "model.safetensors").read_bytes()
    (cut / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    (unknown / "config.json").write_text(json.dumps({"model_type": "never_heard_of"}), encoding="utf-8")
    for target, message in (
        (nothing, "it has no config.json"),
        (unknown, "cannot be loaded as a causal"),
        (no_json, "cannot be loaded as a causal"),
        (cut, "cannot be loaded as a causal"),
    ):
        with pytest.raises(SystemExit, match=message):
            run(train_draft.main, monkeypatch, options(target, directory / "text", tmp_path, *SIZES))
