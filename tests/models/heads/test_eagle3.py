"""Programs of EAGLE-3 heads, run by the NumPy reference, against torch; and heads that are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from firelane.errors import CheckpointError, UnsupportedModelError
from firelane.models.heads.draft_head import DraftHead, TargetSizes
from firelane.models.heads.eagle3 import eagle3_head
from tests.models.heads.head_run import run
from tests.models.heads.torch_eagle3 import (
    VOCAB,
    WIDTH,
    Tensors,
    TorchHead,
    norm_weight,
    random_head,
    specforge_config,
    speculators_config,
)

TARGET = TargetSizes(vocab_size=VOCAB, width=WIDTH, layers=4, max_model_len=64)
ROWS = 20


def rows_of(head: DraftHead, table: np.ndarray, tokens: list[int], streams: np.ndarray) -> np.ndarray:
    rows = np.zeros((len(tokens), head.row_width), np.float32)
    rows[:, :WIDTH] = table[tokens]
    rows[:, WIDTH : WIDTH + streams.shape[1]] = streams
    return rows


CASES: dict[str, tuple[dict[str, Any], dict[str, bool]]] = {
    "specforge": (specforge_config(), {}),
    "speculators": (speculators_config(), {"norm_before_residual": True}),
    "speculators, normed output": (
        speculators_config(norm_before_residual=False, norm_output=True, norm_before_fc=True),
        {"norm_output": True, "norm_before_fc": True},
    ),
    "a norm for each stream": (specforge_config(fc_norm=True), {"fc_norm": True}),
}


def tensors_for(config: dict[str, Any], layer: str) -> Tensors:
    rng, tensors = np.random.default_rng(7), random_head(layer=layer)
    if config.get("norm_before_fc"):
        tensors["input_norm.weight"] = norm_weight(rng, 3 * WIDTH)
    if config.get("fc_norm"):
        tensors |= {f"fc_norm.{i}.weight": norm_weight(rng, WIDTH) for i in range(3)}
    return tensors


@pytest.mark.parametrize("layer", ["midlayer", "layers.0"])
@pytest.mark.parametrize("case", CASES)
def test_logits_and_what_is_told(case: str, layer: str) -> None:
    """The first rows are of the target's streams, the later ones of what the head has told before."""
    config, options = CASES[case]
    tensors = tensors_for(config, layer)
    head = eagle3_head(config, tensors.keys(), TARGET)
    rng = np.random.default_rng(3)
    table = rng.standard_normal((VOCAB, WIDTH)).astype(np.float32)
    streams = rng.standard_normal((ROWS, 3 * WIDTH)).astype(np.float32) * 2
    tokens = rng.integers(0, VOCAB, ROWS + 2).tolist()
    oracle = TorchHead(tensors, table, **options)
    features = oracle.project(torch.tensor(streams))
    first, fed = oracle.run(tokens[:ROWS], features)
    logits, told = run(head, tensors, rows_of(head, table, tokens[:ROWS], streams))
    np.testing.assert_allclose(logits, first, atol=2e-4)
    np.testing.assert_allclose(told, fed, atol=2e-4)
    later = rows_of(head, table, tokens[: ROWS + 1], np.concatenate([streams, 0 * streams[:1]]))
    later[ROWS, head.own_at :] = told[-1]
    logits, _ = run(head, tensors, later)
    want, _ = oracle.run(tokens[: ROWS + 1], torch.cat([features, fed[-1:]]))
    np.testing.assert_allclose(logits, want, atol=2e-4)
    assert head.streams == (0, 1, 2)
    assert head.token_ids == "d2t"


def test_streams_where_the_config_does_not_say() -> None:
    config = specforge_config(eagle_config=None)
    target = TargetSizes(vocab_size=VOCAB, width=WIDTH, layers=32, max_model_len=64)
    assert eagle3_head(config, random_head().keys(), target).streams == (2, 16, 29)


def test_a_window() -> None:
    config = speculators_config()
    layer = config["transformer_layer_config"] | {"layer_types": ["sliding_attention"], "sliding_window": 8}
    head = eagle3_head(config | {"transformer_layer_config": layer}, random_head().keys(), TARGET)
    assert str(head.program.spans[0]) == "window 8"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "architectures"),
        ({"num_hidden_layers": 2}, "num_hidden_layers"),
        ({"vocab_size": 300}, "the target's is 261"),
        ({"hidden_size": 160}, "hidden_size"),
        ({"target_hidden_size": 96}, "target_hidden_size"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 5]}}, "streams 0 to 4"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": "all"}}, "eagle_aux_hidden_state_layer_ids"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state"),
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"speculators_model_type": "dflash"}, "speculators_model_type"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings"),
        ({"fc_norm": True, "norm_before_fc": True}, "norm_before_fc"),
        ({"draft_vocab_size": -1}, "draft_vocab_size"),
        ({"norm_before_residual": "yes"}, "norm_before_residual"),
    ],
)
def test_refused_configs(changes: dict[str, Any], said: str) -> None:
    tensors = tensors_for({"norm_before_fc": True, "fc_norm": True}, "midlayer")
    with pytest.raises(UnsupportedModelError, match=said):
        eagle3_head(specforge_config(**changes), tensors.keys(), TARGET)


def test_refused_tensors() -> None:
    tensors = random_head()
    with pytest.raises(CheckpointError, match=r"midlayer or layers\.0"):
        eagle3_head(specforge_config(), [n for n in tensors if "midlayer" not in n], TARGET)
    with pytest.raises(CheckpointError, match="no tensor fc"):
        eagle3_head(specforge_config(), tensors.keys() - {"fc.weight"}, TARGET)
    with pytest.raises(UnsupportedModelError, match="there is no d2t"):
        eagle3_head(specforge_config(), tensors.keys() - {"d2t"}, TARGET)
