"""Toy encoders, made by transformers itself: its random weights, spread, under the names that it saves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

VOCAB_SIZE, MAX_LEN, PAD = 331, 160, 1
Config = dict[str, Any]


def bert() -> Config:
    return _base("BertModel", "bert") | {"type_vocab_size": 2, "layer_norm_eps": 1e-12}


def xlm_roberta() -> Config:
    sizes = {"type_vocab_size": 1, "layer_norm_eps": 1e-5, "max_position_embeddings": MAX_LEN + PAD + 1}
    return _base("XLMRobertaModel", "xlm-roberta") | sizes


def modernbert() -> Config:
    """Layers that see nine positions on both sides, but for every third."""
    return _base("ModernBertModel", "modernbert") | {
        "num_hidden_layers": 5,
        "local_attention": 18,
        "cls_token_id": 2,
        "sep_token_id": 3,
        "eos_token_id": 3,
        "bos_token_id": 2,
    }


def nomic_bert() -> Config:
    return _base("NomicBertModel", "nomic_bert")


ENCODERS: dict[str, Callable[[], Config]] = {
    "bert": bert,
    "xlm_roberta": xlm_roberta,
    "modernbert": modernbert,
    "nomic_bert": nomic_bert,
}


CLASSIFIERS: dict[str, Callable[[], Config]] = {
    "bert_pairs": lambda: bert() | {"architectures": ["BertForSequenceClassification"], "num_labels": 1},
    "xlm_roberta_pairs": lambda: (
        xlm_roberta() | {"architectures": ["XLMRobertaForSequenceClassification"], "num_labels": 1}
    ),
    "roberta_classes": lambda: (
        xlm_roberta()
        | {"architectures": ["RobertaForSequenceClassification"], "model_type": "roberta", "num_labels": 3}
    ),
    "modernbert_pairs": lambda: (
        modernbert()
        | {
            "architectures": ["ModernBertForSequenceClassification"],
            "num_labels": 1,
            "classifier_pooling": "mean",
        }
    ),
    "qwen3_pairs": lambda: (
        _base("Qwen3ForSequenceClassification", "qwen3")
        | {"num_labels": 1, "head_dim": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
        | {"tie_word_embeddings": False}
    ),
    "modernbert_classes": lambda: (
        modernbert() | {"architectures": ["ModernBertForSequenceClassification"], "num_labels": 5}
    ),
}


def make_encoder(name: str, dtype: str, directory: Path, pooling: Config | None = None) -> Path:
    """Write encoder `name` with weights in `dtype` ("float32" or "bfloat16"); with `pooling`, as
    sentence-transformers keeps it. Returns the directory."""
    config = (ENCODERS | CLASSIFIERS)[name]()
    kind = config.pop("architectures")[0]
    torch.manual_seed(len(name))
    settings = transformers.AutoConfig.for_model(**config)
    model: Any = getattr(transformers, kind)(settings)
    for tensor in model.state_dict().values():
        if tensor.is_floating_point():
            _spread(tensor)
    model.to(getattr(torch, dtype)).save_pretrained(directory)
    if pooling is not None:
        write_sentence_files(directory, pooling)
    return directory


def write_sentence_files(directory: Path, pooling: Config, *modules: str) -> None:
    """modules: kinds of further ones."""
    kinds = ["Transformer", "Pooling", *modules, "Normalize"]
    paths = ["" if kind == "Transformer" else f"{i}_{kind}" for i, kind in enumerate(kinds)]
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(zip(kinds, paths, strict=True))
    ]
    (directory / "modules.json").write_text(json.dumps(listed))
    (directory / "1_Pooling").mkdir(exist_ok=True)
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


def oracle(directory: Path) -> torch.nn.Module:
    """The model as transformers has it, in float32."""
    (kind,) = json.loads((directory / "config.json").read_text())["architectures"]
    model = getattr(transformers, kind).from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    )
    return model.eval()


def _base(architecture: str, model_type: str) -> Config:
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 80,
        "intermediate_size": 136,
        "num_attention_heads": 5,
        "num_hidden_layers": 3,
        "max_position_embeddings": MAX_LEN,
        "pad_token_id": PAD,
    }


def _spread(tensor: Tensor) -> None:
    """Random weights of transformers are so small that a layer hardly shows, and biases are zeros."""
    with torch.no_grad():
        noise = torch.randn(tensor.shape)
        tensor += noise * (0.3 if tensor.ndim < 2 else 0.8 * tensor.shape[-1] ** -0.5)
