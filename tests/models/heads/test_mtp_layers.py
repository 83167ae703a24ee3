"""Several layers that predict tokens: drafts of their programs, against those of transformers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel

from firelane.models.registry import load_predictor
from tests.models.families import config_of, make_checkpoint, random_tensor, random_tensors
from tests.models.heads.head_run import Tensors, drafted
from tests.models.oracle import load_oracle

LAYERS, ROWS = 3, 14


def tensors_of(config: dict) -> Tensors:
    """Tensors of the model, and of its predicting layers."""
    tensors, rng = random_tensors(config, 0), np.random.default_rng(1)
    for program in load_predictor(config).programs:
        for weight in program.weights:
            for piece in weight.pieces:
                if piece.tensor not in tensors:
                    tensors[piece.tensor] = random_tensor(rng, weight, piece)
    return tensors


def in_transformers(tensors: Tensors, first: int, experts: int) -> dict[str, torch.Tensor]:
    """Tensors of the predicting layers, by the names there. first: the number of their first one."""
    found: dict[str, torch.Tensor] = {}
    own = {"enorm", "hnorm", "eh_proj"}
    for layer in range(LAYERS):
        place = f"model.layers.{first + layer}."
        parts = {
            name.removeprefix(place): torch.tensor(values)
            for name, values in tensors.items()
            if place in name
        }
        parts["post_norm.weight"] = parts.pop("shared_head.norm.weight")

        def of(part: str, parts: dict = parts) -> torch.Tensor:
            return torch.stack([parts.pop(f"mlp.experts.{e}.{part}.weight") for e in range(experts)])

        parts["mlp.experts.gate_up_proj"] = torch.cat([of("gate_proj"), of("up_proj")], 1)
        parts["mlp.experts.down_proj"] = of("down_proj")
        for name, values in parts.items():
            block = "" if name.split(".")[0] in own | {"post_norm"} else "mtp_block."
            found[f"layers.{layer}.{block}{name}"] = values
    return found


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, Tensors, MtpModel]:
    config = config_of("deepseek_v3", "float32") | {"num_nextn_predict_layers": LAYERS}
    tensors = tensors_of(config)
    main = load_oracle(make_checkpoint("deepseek_v3", "float32", tmp_path_factory.mktemp("main")))
    main.config.num_mtp_layers = LAYERS
    found = MtpModel(main, LAYERS).eval()
    given = in_transformers(tensors, config["num_hidden_layers"], config["n_routed_experts"])
    missing, unexpected = found.load_state_dict(given, strict=False)
    assert (set(missing), unexpected) == ({"embed_tokens.weight", "shared_head.weight"}, [])
    return config, tensors, found


@pytest.mark.parametrize("seed", range(6))
def test_each_layer_drafts_the_token_that_transformers_drafts(
    oracle: tuple[dict, Tensors, MtpModel], seed: int
) -> None:
    config, tensors, model = oracle
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, config["vocab_size"], ROWS + 1).tolist()
    hidden = rng.standard_normal((ROWS, config["hidden_size"])).astype(np.float32)
    with torch.no_grad():
        found, _, _ = model(
            input_ids=torch.tensor([tokens[1:]]),
            last_hidden_states=torch.tensor(hidden)[None],
            attention_mask=None,
            position_ids=torch.arange(1, ROWS + 1)[None],
            mtp_cache=MtpCache(config=model.config),
        )
    assert drafted(load_predictor(config), tensors, tokens, hidden, LAYERS) == found[0].tolist()
