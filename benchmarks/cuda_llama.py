"""Models of Llama's shape with random weights, made on the device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from firelane.backends.cuda.device.device import Device
from firelane.backends.cuda.loading.packing import MatrixPacker
from firelane.backends.cuda.weights.device_weights import DeviceWeights
from firelane.backends.cuda.weights.matrices import Matrix
from firelane.backends.cuda.weights.placement import Placement, placements
from firelane.models.registry import load_program
from firelane.program.program import Program

LLAMA_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 128000,
    "eos_token_id": 128001,
}
TINY: dict[str, Any] = LLAMA_8B | {
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 160,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
DEVIATION = 0.02


def program_of(config: dict[str, Any], *, layers: int | None = None) -> Program:
    """layers: fewer than the config says, so that single kernels can be measured in little memory."""
    return load_program(config | ({"num_hidden_layers": layers} if layers else {}))


def random_weights(program: Program, device: Device, *, mode: str, seed: int = 0) -> DeviceWeights:
    """Normal matrices of deviation 0.02, vectors of ones; the same numbers in every mode (see
    ExecutorConfig.weights)."""
    placed = placements(program, mode)
    packer = MatrixPacker(device, placed)
    matrices: dict[str, Matrix] = {}
    vectors: dict[str, Tensor] = {}
    for index, p in enumerate(placed):
        target = packer.place(p)
        if p.is_matrix:
            torch.manual_seed(seed + index)
            fill(p, target)
            matrices[p.weight.name] = packer.pack(p, target)
        else:
            vectors[p.weight.name] = target.view(-1).fill_(1.0)
    return DeviceWeights(matrices=matrices, vectors=vectors)


def fill(p: Placement, target: Tensor) -> None:
    """Random where there are weights; padding rows are zero already."""
    for segment in p.segments:
        target[segment.at : segment.at + len(segment.rows)].normal_(0.0, DEVIATION)
    target[:, p.k :] = 0
