"""Heads beside their target on the CPU backend: the same tokens as without, and the drafts that torch
computes from transformers' hidden states."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from firelane.backends.cpu.ranks.interconnect import usable_cores
from firelane.contract import Executor
from firelane.engine.process.load import load_executor
from firelane.engine.speculation.choice import SecondModel
from firelane.engine.speculation.heads.head_proposer import HeadProposer
from firelane.kv.prefix import tenant_id
from firelane.models.config.reader import read_config
from firelane.models.registry import load_predictor
from firelane.weights.checkpoints.checkpoint import Checkpoint
from tests.engine.driver import Driver
from tests.engine.oracle import Recall
from tests.engine.speculation.head_support import (
    engine_config,
    load_with_head,
    make_predicting,
    requests,
    write_head,
)
from tests.free_steps import make_steps_free
from tests.models.families import make_checkpoint
from tests.models.heads.head_run import drafted
from tests.models.heads.torch_eagle3 import VOCAB, TorchHead, random_head, specforge_config
from tests.models.oracle import load_oracle

SIZES = {"max_num_seqs": 4, "max_num_batched_tokens": 24, "max_model_len": 128}
LENGTHS, NEW_TOKENS, LAYERS = (3, 17, 40, 61, 16, 33), 24, 3


class Watched(Recall):
    """Asks a head, keeps what it says, and drafts from known answers, of which every fourth token is
    wrong."""

    def __init__(self, head: HeadProposer, answers: dict[bytes, list[int]]) -> None:
        super().__init__(answers)
        self.head, self.said = head, []

    def note_rows(self, computed):
        self.head.note_rows(computed)

    def propose(self, asked):
        found = self.head.propose(asked)
        self.said += [(one.tokens.tolist(), proposal) for one, proposal in zip(asked, found, strict=True)]
        return super().propose(asked)


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "llama"
    return make_checkpoint("llama2", "float32", directory, num_hidden_layers=LAYERS)


@pytest.fixture(scope="module")
def plain(model: Path, cache_dir: Path) -> dict[int, list[int]]:
    """Answers without drafts."""
    executor = load_executor(engine_config(model, cache_dir, **SIZES), lambda *_: None)
    answers = answers_of(Driver(executor))
    executor.release()
    return answers


def answers_of(driver: Driver) -> dict[int, list[int]]:
    make_steps_free(driver.core.drafter)
    driver.submit(*requests(VOCAB, LENGTHS, NEW_TOKENS))
    driver.run()
    return driver.tokens


def recalled(plain: dict[int, list[int]]) -> dict[bytes, list[int]]:
    return {one.prompt: plain[one.id] for one in requests(VOCAB, LENGTHS, NEW_TOKENS)}


def release(*executors: Executor | SecondModel) -> None:
    for executor in executors:
        executor.release()


@pytest.mark.parametrize("has_table", [False, True])
def test_drafts_of_an_eagle3_head(
    model: Path, cache_dir: Path, plain: dict[int, list[int]], tmp_path: Path, has_table: bool
) -> None:
    tensors = random_head(table=has_table)
    head = write_head(tmp_path / "head", specforge_config(), tensors)
    target, executor, proposer = load_with_head(model, cache_dir, head, **SIZES)
    watched = Watched(proposer, recalled(plain))
    assert answers_of(Driver(target, proposer=watched)) == plain
    release(executor, target)
    said = [(tokens, proposal.tokens) for tokens, proposal in watched.said]
    assert len(said) > 20
    assert max(len(draft) for _, draft in said) >= 4
    oracle = load_oracle(model)
    table = tensors.get("embed_tokens.weight", oracle.model.embed_tokens.weight.detach().numpy())
    judge = TorchHead(tensors, table)
    for tokens, draft in said:
        assert draft == judge.draft(tokens, streams_of(oracle, tokens[:-1]), len(draft))


def streams_of(oracle: torch.nn.Module, tokens: list[int], *, last: bool = False) -> np.ndarray:
    """Inputs of each layer, side by side; last: the hidden state behind the last norm."""
    with torch.no_grad():
        found = oracle(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    return torch.cat(found[-1:] if last else found[:LAYERS], -1)[0].numpy()


def test_a_prefix_that_the_head_knows(
    model: Path, cache_dir: Path, plain: dict[int, list[int]], tmp_path: Path
) -> None:
    """The same requests again, whose prompts' pages are there: the head goes on from its own pages. Where it
    has lost them, it begins behind them."""
    head = write_head(tmp_path / "head", specforge_config(), random_head())
    target, executor, proposer = load_with_head(model, cache_dir, head, **SIZES)
    watched = Watched(proposer, recalled(plain))
    driver = Driver(target, proposer=watched)
    assert answers_of(driver) == plain
    again(driver, watched)
    assert answers_of(driver) == plain
    assert driver.cached[3] >= 48
    assert any(proposal.tokens for tokens, proposal in watched.said if len(tokens) > LENGTHS[3])
    proposer.forget(b"nobody")
    proposer.forget(tenant_id(""))
    again(driver, watched)
    assert answers_of(driver) == plain
    origins = [text.origin for text in proposer._layers.texts.values()]
    assert max(origins) >= 48
    assert any(proposal.tokens for tokens, proposal in watched.said if len(tokens) > LENGTHS[3])
    release(executor, target)


def again(driver: Driver, watched: Watched) -> None:
    """Forget what was collected."""
    for found in (watched.said, driver.tokens, driver.cached, driver.reasons):
        found.clear()


PREDICTING = (
    "deepseek_v3",
    "deepseek_v32",
    "glm_moe_dsa",
    "hy3",
    "glm4_moe_lite",
    "qwen3_next",
    "qwen3_5",
    "qwen3_5_moe",
)


@pytest.mark.parametrize(
    ("family", "layers"),
    [*((family, 1) for family in PREDICTING), ("deepseek_v3", 3), ("qwen3_5", 2), ("qwen2", 2)],
)
def test_drafts_of_layers_that_predict(family: str, layers: int, cache_dir: Path, tmp_path: Path) -> None:
    """MiMo has the layers of Qwen2. Later families of Qwen keep recurrent state: what was right of a draft
    that failed is computed anew."""
    directory = make_predicting(family, tmp_path / "model", layers=layers)
    executor = load_executor(engine_config(directory, cache_dir, **SIZES), lambda *_: None)
    plain = answers_of(Driver(executor))
    release(executor)
    target, head, proposer = load_with_head(directory, cache_dir, None, **SIZES)
    assert len(head.executors) == layers
    watched = Watched(proposer, recalled(plain))
    assert answers_of(Driver(target, proposer=watched)) == plain
    release(head, target)
    config = read_config(directory)
    tensors = {name: Checkpoint.open(directory).tensor(name) for name in Checkpoint.open(directory).names}
    oracle = load_oracle(make_checkpoint(family, "float32", tmp_path / "alone"))
    said = [(tokens, proposal.tokens) for tokens, proposal in watched.said if proposal.tokens]
    assert max(len(draft) for _, draft in said) >= 4
    for tokens, draft in said[::3]:
        hidden = streams_of(oracle, tokens[:-1], last=True)
        assert draft == drafted(load_predictor(config), tensors, tokens, hidden, len(draft))


@pytest.mark.skipif(len(usable_cores()) < 2, reason="ranks need a core each")
@pytest.mark.parametrize(
    ("family", "size"),
    [
        ("deepseek_v3", "tensor_parallel_size"),
        ("deepseek_v3", "expert_parallel_size"),
        ("qwen3_next", "tensor_parallel_size"),
    ],
)
def test_a_layer_that_predicts_beside_two_ranks(
    family: str, size: str, cache_dir: Path, tmp_path: Path
) -> None:
    """Latents are on both ranks, or in one cache of both, recurrent states by head: each has what the layer
    reads whole."""
    directory = make_predicting(family, tmp_path / "model")
    executor = load_executor(engine_config(directory, cache_dir, **SIZES), lambda *_: None)
    plain = answers_of(Driver(executor))
    release(executor)
    said = []
    for sizes in ({}, {size: 2, "threads": 2}):
        target, head, proposer = load_with_head(directory, cache_dir, None, **SIZES, **sizes)
        watched = Watched(proposer, recalled(plain))
        assert answers_of(Driver(target, proposer=watched)) == plain
        release(head, target)
        said.append([(tokens, proposal.tokens, proposal.confidence) for tokens, proposal in watched.said])
    assert max(len(draft) for _, draft, _ in said[0]) >= 4
    assert said[0] == said[1]
