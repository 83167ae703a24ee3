"""Towers and language models with images, run by the NumPy reference; toys of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from firelane.contract import SCORE, SlotState, StepInputs, StepLimits
from firelane.models.towers.tower import ImageTower
from firelane.program.program import Program
from firelane.program.reference import ReferenceExecutor, reference_weights
from firelane.weights.checkpoints.checkpoint import Checkpoint
from tests.models.test_multimodal_checkpoints import SPECIAL, TEXT, VISION, _fill

F32 = NDArray[np.float32]
IMAGE_TOKEN = SPECIAL["image_token_id"]
FACTOR = 8
TOWER = VISION | {"depth": 3, "num_position_embeddings": 36, "deepstack_visual_indexes": [0, 1]}
"""A table of 6 * 6 positions, and rows for two layers."""
WIDE_TOWER = TOWER | {"hidden_size": 144}
"""Heads 72 wide, as those of Qwen3-VL above 4B."""


def save_toy(
    directory: Path,
    dtype: torch.dtype = torch.float32,
    *,
    vision: dict[str, Any] = TOWER,
    experts: dict[str, Any] | None = None,
) -> torch.nn.Module:
    """Writes a Qwen3-VL with weights as large as toys have them; returns it in float32. experts: of the text
    config; None for a dense one."""
    kind = "Qwen3VL" if experts is None else "Qwen3VLMoe"
    config = getattr(transformers, f"{kind}Config")(
        text_config=TEXT
        | {"num_hidden_layers": 3, "tie_word_embeddings": False, "max_position_embeddings": 512}
        | (experts or {}),
        vision_config=vision,
        **SPECIAL,
    )
    config._attn_implementation = "eager"
    torch.manual_seed(5)
    model: Any = getattr(transformers, f"{kind}ForConditionalGeneration")(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 2:  # the patches
                weight.copy_(torch.randn_like(weight) * weight[0].numel() ** -0.5)
            else:
                _fill(name, weight)
    model.to(dtype).save_pretrained(directory)
    return model.float()


def picture(seed: int, height: int, width: int) -> NDArray[np.uint8]:
    """uint8 [height, width, 3]."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def run_rows(program: Program, directory: Path, rows: F32) -> F32:
    """The features that an encoder's program tells of these rows."""
    count = len(rows)
    weights = reference_weights(program, Checkpoint.open(directory).tensor)
    sizes = limits(count)
    inputs = StepInputs.allocate(sizes, program.features_in)
    inputs.num_chunks, inputs.num_tokens, inputs.num_rows = 1, count, 0
    inputs.chunk_len[0] = count
    inputs.features[:count] = rows
    executor = ReferenceExecutor(program, weights, slots=1, max_len=count)
    return executor.step(inputs, SlotState.allocate(sizes, program.vocab_size)).features


def limits(count: int) -> StepLimits:
    blocks = -(-count // 16)
    return StepLimits(
        max_num_seqs=1,
        max_num_batched_tokens=count,
        max_output_rows=count,
        max_model_len=count,
        block_size=16,
        num_blocks=blocks,
    )


def image_rows(tower: ImageTower, directory: Path, pixels: NDArray[np.uint8]) -> F32:
    """The rows of an image."""
    told = run_rows(tower.blocks, directory, tower.patches.rows(pixels))
    return run_rows(tower.merger, directory, tower.joined(told))


def logits(program: Program, directory: Path, tokens: NDArray[np.int32], features: F32) -> F32:
    """Logits at every position."""
    count, sizes = len(tokens), limits(len(tokens))
    weights = reference_weights(program, Checkpoint.open(directory).tensor)
    state, inputs = (
        SlotState.allocate(sizes, program.vocab_size),
        StepInputs.allocate(sizes, program.features_in),
    )
    state.tokens[0, :count] = tokens
    state.sampling["repetition_penalty"] = 1
    inputs.num_chunks, inputs.num_tokens, inputs.num_rows = 1, count, count
    inputs.chunk_len[0] = count
    inputs.row_token[:count] = inputs.row_position[:count] = range(count)
    inputs.row_kind[:count] = SCORE
    inputs.features[:count] = features
    step = ReferenceExecutor(program, weights, slots=1, max_len=count).step(inputs, state)
    assert program.head is not None
    return step.read(program.head.out)


def oracle_inputs(pictures: list[NDArray[np.uint8]], patch: int = 4) -> dict[str, torch.Tensor]:
    """pixel_values and image_grid_thw as transformers' processor makes them of pictures that keep their
    size."""
    values, grids = list[torch.Tensor](), list[list[int]]()
    for pixels in pictures:
        rows, columns = (side // patch for side in pixels.shape[:2])
        numbers = torch.from_numpy(pixels.copy()).permute(2, 0, 1).float() / 127.5 - 1
        squares = numbers.unfold(1, patch, patch).unfold(2, patch, patch)  # [3, rows, columns, patch, patch]
        squares = squares.reshape(3, rows // 2, 2, columns // 2, 2, patch, patch)
        ordered = squares.permute(1, 3, 2, 4, 0, 5, 6).reshape(rows * columns, 3, 1, patch, patch)
        values.append(ordered.expand(-1, -1, 2, -1, -1).reshape(rows * columns, -1))
        grids.append([1, rows, columns])
    return {"pixel_values": torch.cat(values), "image_grid_thw": torch.tensor(grids)}
