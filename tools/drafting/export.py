"""Write heads and draft models as directories that appear whole."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaForCausalLM

from tools.drafting.eagle import EagleHead
from tools.drafting.target import Target, published_rope

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "special_tokens_map.json",
)


def write_directory(directory: Path, fill: Callable[[Path], None]) -> None:
    """Fill a scratch directory beside ``directory``, then move its files into place."""
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent) as scratch:
        made = Path(scratch)
        fill(made)
        for path in sorted(made.iterdir()):
            path.chmod(0o644)
            path.replace(directory / path.name)


def save_head(head: EagleHead, target: Target, directory: Path) -> None:
    """Write config.json and model.safetensors in the published layout, in bf16."""
    tensors = head_tensors(head)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    text = json.dumps(head_config(head, target), indent=2) + "\n"
    (directory / "config.json").write_text(text, encoding="utf-8")


def head_tensors(head: EagleHead) -> dict[str, Tensor]:
    """The weights by their published names; target id = i + d2t[i], and t2d marks the ids in use."""
    ids = head.draft_ids.cpu()
    used = torch.zeros(head.config.vocab_size, dtype=torch.bool)
    used[ids] = True
    weights = {name: w.to(torch.bfloat16).cpu().contiguous() for name, w in head.state_dict().items()}
    return weights | {"d2t": ids - torch.arange(len(ids)), "t2d": used}


def head_config(head: EagleHead, target: Target) -> dict[str, Any]:
    """The fields of config.json; rope stands as in the target's own file."""
    own = head.config
    names = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    more = ("rms_norm_eps", "vocab_size", "draft_vocab_size", "eagle_aux_hidden_state_layer_ids")
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        **{name: getattr(own, name) for name in names + more},
        "bos_token_id": own.bos_token_id,
        "eos_token_id": own.eos_token_id,
        **published_rope(target.directory),
    }


def save_draft(model: LlamaForCausalLM, target: Target, directory: Path) -> None:
    """Write an ordinary checkpoint in bf16, with the target's tokenizer files beside it."""
    copy = LlamaForCausalLM(deepcopy(model.config))
    copy.load_state_dict(model.state_dict())
    copy.bfloat16().save_pretrained(directory)
    for name in TOKENIZER_FILES:
        if (target.directory / name).is_file():
            shutil.copyfile(target.directory / name, directory / name)
