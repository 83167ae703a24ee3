"""Checkpoints, made from a small good one by mutations: each is read, or refused with a FirelaneError in one
short line, within seconds.
"""

from __future__ import annotations

import json
import struct
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from firelane.errors import FirelaneError
from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from firelane.weights.checkpoints.checkpoint import Checkpoint
from firelane.weights.storage.files import INDEX, SINGLE
from fuzz.draw import Draw
from fuzz.target import Target

LIMIT_S = 5.0
"""The limit is of processor time: the machine may have other things to do."""
ABSURD = [
    *(0, -1, 1, 2**31, 2**63, 2**64, 10**400, 1e308, 5e-324, -0.0, float("inf"), float("nan"), True, None),
    *("", "..", "/etc/passwd", "a\0b", "\ud800", "x" * 300, "x" * 100_000, [], {}, [[[]]], {"a": []}),
]
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 40,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}


def run(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("error")
        directory = Path(name)
        make(directory, Draw(data))
        read(directory)


def read(directory: Path) -> None:
    """All that a load reads of a checkpoint. Raises FirelaneErrors."""
    program = load_program(read_config(directory))
    checkpoint = Checkpoint.open(directory)
    checkpoint.check_against(program)
    assert checkpoint.fingerprint
    for name in checkpoint.names:
        checkpoint.tensor(name)


def make(directory: Path, rng: Draw) -> None:
    """A good checkpoint with one to three changes."""
    model = Model(directory)
    for _ in range(rng.between(1, 3)):
        rng.choice(MUTATIONS)(model, rng)
    model.write()


class Model:
    """The parts of a checkpoint, to be changed before they are written. raw: changes of the file's bytes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.config = dict(CONFIG)
        self.header, self.data = _tensors()
        self.index: Any = None
        self.raw: list[Callable[[bytearray], None]] = []

    def write(self) -> None:
        (self.directory / "config.json").write_bytes(_json(self.config))
        text = _json(self.header)
        content = bytearray(struct.pack("<Q", len(text)) + text + self.data)
        for change in self.raw:
            change(content)
        (self.directory / SINGLE).write_bytes(content)
        if self.index is not None:
            (self.directory / INDEX).write_bytes(_json(self.index))


def _config_value(model: Model, rng: Draw) -> None:
    model.config[rng.choice(list(model.config))] = rng.choice(ABSURD)


def _config_key(model: Model, rng: Draw) -> None:
    key = rng.choice(list(model.config))
    if rng.chance() < 0.5:
        del model.config[key]
    else:
        model.config[rng.choice(["quantization_config", "rope_scaling", "auto_map", key * 3])] = rng.choice(
            ABSURD
        )


def _tensor_field(model: Model, rng: Draw) -> None:
    name = rng.choice(list(model.header))
    if not isinstance(model.header[name], dict):
        return
    field = rng.choice(["dtype", "shape", "data_offsets"])
    value = rng.choice([*ABSURD, "F16", "F4", [2**40, 2**40], [0, 2**62], [2, 1], [1.5, 2]])
    model.header[name] = {**model.header[name], field: value}


def _tensor_name(model: Model, rng: Draw) -> None:
    old = rng.choice(list(model.header))
    new = rng.choice(
        ["", "__metadata__", "\ud800", "\n", "x" * 100_000, "firelane_lossless.control", old + "\0"]
    )
    model.header[new] = model.header.pop(old) if rng.chance() < 0.7 else model.header[old]


def _metadata(model: Model, rng: Draw) -> None:
    model.header["__metadata__"] = rng.choice([*ABSURD, {"format": "firelane-lossless", "version": "1"}])


def _flip(model: Model, rng: Draw) -> None:
    place, bit = rng.chance() ** 3, 1 << rng.below(8)

    def change(content: bytearray) -> None:
        if content:
            content[int(place * len(content))] ^= bit

    model.raw.append(change)


def _cut(model: Model, rng: Draw) -> None:
    keep, more = rng.chance(), rng.choice([b"", b"\0", b"{" * 1000])

    def change(content: bytearray) -> None:
        content[int(keep * len(content)) :] = more

    model.raw.append(change)


def _header_length(model: Model, rng: Draw) -> None:
    length = rng.choice([0, 1, 7, 2**20, 2**31, 2**63, 2**64 - 1])
    model.raw.append(lambda content: content.__setitem__(slice(0, 8), struct.pack("<Q", length)))


def _index(model: Model, rng: Draw) -> None:
    shards = [SINGLE, "..", "", "a/b", "missing.safetensors", "config.json", *ABSURD]
    names = [name for name in model.header if rng.chance() < 0.9]
    weight_map = {name: rng.choice(shards) if rng.chance() < 0.1 else SINGLE for name in names}
    model.index = rng.choice([{"weight_map": weight_map}] * 4 + ABSURD + [{"weight_map": v} for v in ABSURD])


MUTATIONS = [
    *(_config_value, _config_key, _tensor_field, _tensor_name, _metadata),
    *(_flip, _cut, _header_length, _index),
]


def _tensors() -> tuple[dict[str, Any], bytes]:
    layer = "model.layers.0."
    shapes = {
        "model.embed_tokens.weight": (40, 32),
        layer + "input_layernorm.weight": (32,),
        layer + "self_attn.q_proj.weight": (32, 32),
        layer + "self_attn.k_proj.weight": (16, 32),
        layer + "self_attn.v_proj.weight": (16, 32),
        layer + "self_attn.o_proj.weight": (32, 32),
        layer + "post_attention_layernorm.weight": (32,),
        layer + "mlp.gate_proj.weight": (48, 32),
        layer + "mlp.up_proj.weight": (48, 32),
        layer + "mlp.down_proj.weight": (32, 48),
        "model.norm.weight": (32,),
        "lm_head.weight": (40, 32),
    }
    header: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, end]}
    return header, bytes(end)


def _json(content: Any) -> bytes:
    return json.dumps(content).encode("utf-8", "surrogatepass")


TARGET = Target(run=run, refusals=(FirelaneError,), most_bytes=64, limit_s=LIMIT_S)
