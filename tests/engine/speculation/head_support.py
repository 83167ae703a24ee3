"""Engines of toy models with heads, on the CPU backend."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from firelane.contract import Executor
from firelane.engine.process.draft_load import load_second
from firelane.engine.process.load import load_executor, read_program
from firelane.engine.speculation.choice import SecondModel
from firelane.engine.speculation.heads.head_proposer import HeadProposer, head_proposer
from firelane.engine_config import EngineConfig
from firelane.models.registry import load_predictor
from firelane.wire.frames import NewRequest, Sampling
from tests.models.families import make_checkpoint, random_tensor, random_tensors
from tests.weights.files import write_safetensors


def write_head(directory: Path, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    save_file(tensors, directory / "model.safetensors")
    return directory


def engine_config(model: Path, cache_dir: Path, **sizes: Any) -> EngineConfig:
    sizes = {"threads": 1, "kv_cache_bytes": 4 << 20, **sizes}
    return EngineConfig(model_dir=model, backend="cpu", cache_dir=cache_dir, **sizes)


def load_with_head(
    model: Path, cache_dir: Path, head: Path | None, **sizes: Any
) -> tuple[Executor, SecondModel, HeadProposer]:
    """The model's executor, the head in this directory, or the model's own where there is none, and its
    proposer."""
    speculative = "mtp" if head is None else f"eagle3={head}"
    config = engine_config(model, cache_dir, speculative=speculative, **sizes)
    program = read_program(config)
    target = load_executor(config, lambda *_: None, program=program)
    second = load_second(config, program, target, lambda *_: None)
    assert second is not None
    assert second.rows is not None
    return target, second, head_proposer(second.executors, second.rows, target)


def requests(vocab: int, lengths: tuple[int, ...], tokens: int) -> list[NewRequest]:
    """Random prompts, answered greedily and, every second one, with a temperature."""
    found = []
    for number, length in enumerate(lengths):
        prompt = np.random.default_rng(number).integers(0, vocab, length, np.int32)
        sampling = Sampling(temperature=0.7 * (number % 2), max_tokens=tokens, seed=number)
        found.append(NewRequest(id=number, prompt=prompt.tobytes(), sampling=sampling))
    return found


def make_predicting(name: str, directory: Path, seed: int = 0, *, layers: int = 1) -> Path:
    """A toy checkpoint of this family in float32, with so many layers that predict tokens."""
    key = "mtp_num_hidden_layers" if name.startswith("qwen3_5") else "num_nextn_predict_layers"
    mimo = {"architectures": ["MiMoForCausalLM"], "attention_bias": True} if name == "qwen2" else {}
    make_checkpoint(name, "float32", directory, **{key: layers}, **mimo)
    config, rng = json.loads((directory / "config.json").read_text()), np.random.default_rng(seed + 1)
    tensors = random_tensors(config, seed)
    weights = [weight for program in load_predictor(config).programs for weight in program.weights]
    for weight in weights:
        for piece in weight.pieces:
            if piece.tensor not in tensors:
                tensors[piece.tensor] = random_tensor(rng, weight, piece)
    write_safetensors(directory / "model.safetensors", tensors)
    return directory
