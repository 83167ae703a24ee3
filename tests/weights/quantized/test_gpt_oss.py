"""gpt-oss as it is published, experts in MXFP4 beside matrices in bf16: its answers are those of the bf16
checkpoint of the same numbers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from firelane.models.registry import load_program
from firelane.program.recipes import Piece
from firelane.weights.checkpoints.checkpoint import Checkpoint
from firelane.weights.formats.bf16 import bf16_bits
from firelane.weights.formats.formats import Format
from firelane.weights.packing.pieces import coded_format, read_codes, read_piece
from tests.models.families import make_checkpoint, random_tensors
from tests.models.toy_experts import gpt_oss
from tests.weights.files import to_bf16, write_safetensors
from tests.weights.quantized.quantized_writers import Tensors, mxfp4, write_tensors
from tests.weights.quantized.twins import answers_of

CONFIG = gpt_oss() | {"hidden_size": 96, "intermediate_size": 64, "torch_dtype": "bfloat16"}
SETTINGS = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
}


def write(directory: Path) -> Path:
    """The checkpoint, and beside it (twin/) the one of the numbers that it stands for."""
    make_checkpoint("gpt_oss", "bfloat16", directory)  # its tokenizer
    make_checkpoint("gpt_oss", "bfloat16", directory / "twin")
    stored: Tensors = {}
    numbers: dict[str, np.ndarray] = {}
    for name, values in random_tensors(CONFIG, 0).items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            stored[name], numbers[name] = ("BF16", to_bf16(values)), to_bf16(values)
            continue
        written = [mxfp4(np.ascontiguousarray(matrix.T)) for matrix in values]
        shape = (len(values), values.shape[2], values.shape[1] // 32)
        codes = np.stack([tensors["weight_packed"][1] for tensors, _ in written])
        scales = np.stack([tensors["weight_scale"][1] for tensors, _ in written])
        stored[f"{name}_blocks"] = ("U8", codes.reshape(*shape, 16))
        stored[f"{name}_scales"] = ("U8", scales.reshape(shape))
        numbers[name] = to_bf16(np.stack([matrix.T for _, matrix in written]))
    write_tensors(directory / "model.safetensors", stored)
    write_safetensors(directory / "twin" / "model.safetensors", numbers)
    (directory / "config.json").write_text(json.dumps(CONFIG | {"quantization_config": SETTINGS}))
    (directory / "twin" / "config.json").write_text(json.dumps(CONFIG))
    return directory


def test_experts_stay_codes(tmp_path: Path) -> None:
    """Though their matrices are transposed, and gate and up alternate: the panels of the twin's numbers."""
    directory = write(tmp_path)
    checkpoint, twin = Checkpoint.open(directory), Checkpoint.open(directory / "twin")
    program = load_program(CONFIG)
    experts = [w for w in program.weights if w.layout.by_expert and w.k > 1]
    assert len(experts) == 4
    for weight in experts:
        assert coded_format(checkpoint, weight) is Format.PANEL_MXFP4
        for piece in weight.pieces:
            rows = range(3, piece.height - 5)
            words = bf16_bits(read_codes(checkpoint, piece, rows).values())
            np.testing.assert_array_equal(np.where(words == 0x8000, 0, words), _read(twin, piece, rows))


def _read(checkpoint: Checkpoint, piece: Piece, rows: range) -> np.ndarray:
    words = read_piece(checkpoint, piece, rows)
    return np.where(words == 0x8000, 0, words)


def test_same_answers_as_in_bf16(tmp_path: Path) -> None:
    directory = write(tmp_path)
    first, second = answers_of(directory)
    assert (first.token_ids, first.logprobs) == (second.token_ids, second.logprobs)
