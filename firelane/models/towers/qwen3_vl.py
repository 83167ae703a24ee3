"""The encoder of images of Qwen3-VL (Qwen3-VL report, 2025): patches of one image see each other; the rows of
some blocks join the first layers of the language model, too."""

from __future__ import annotations

from dataclasses import replace

from firelane.models.blocks.blocks import Decoder, Layer
from firelane.models.blocks.encoder import normed, plain_mlp
from firelane.models.blocks.features import read_features
from firelane.models.blocks.stacked import stacked_matrix, stacked_vector
from firelane.models.config.reader import ConfigReader
from firelane.models.towers.heads import PaddedHeads
from firelane.models.towers.patches import Patches
from firelane.models.towers.tower import ImageTokens, ImageTower
from firelane.program.images import ImageRows
from firelane.program.ops import Gated, Linear, TellFeatures
from firelane.program.ops.merge_rows import PLACE_WIDTH
from firelane.program.program import Program
from firelane.program.recipes import Piece
from firelane.program.values import DType, Rows, Value, Weight

ARCHITECTURES = ("Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration")
EPS = 1e-6
SECTIONS = [24, 20, 20]
"""Frequencies of time, row and column, where the config does not say."""
MOST_TOKENS, LEAST_TOKENS = 1024, 8
"""Rows of an image: larger ones are made smaller here, and pages of smaller ones would have names that can be
found by trying."""
LIMITS = 65536, 16777216
BLOCKS = "model.visual.blocks"


def tower(config: ConfigReader, processor: ConfigReader, dtype: DType) -> ImageTower:
    """config: the whole config.json; processor: of the image processor. Raises UnsupportedModelError."""
    vision, text = _section(config, "vision_config"), _section(config, "text_config")
    patches, width = _read_patches(vision, processor), vision.integer("hidden_size")
    taken = vision.integers("deepstack_visual_indexes")
    rows = ImageRows(width=text.integer("hidden_size"), deep=len(taken), axes=_axes(text))
    vision.only("out_hidden_size", rows.width)
    vision.choice("hidden_act", "gelu_pytorch_tanh", among=("gelu_pytorch_tanh",))
    depth = vision.integer("depth")
    if sorted({*taken}) != taken or any(not 0 <= block < depth for block in taken):
        why = f"numbers of blocks, 0 to {depth - 1}, in order"
        raise vision.refusal("deepstack_visual_indexes", taken, why)
    tokens = {part: config.integer(f"{part}_token_id") for part in ("vision_start", "image", "vision_end")}
    decoder = Decoder(
        name="qwen3_vl_tower", vocab_size=1, max_model_len=patches.most, width=width, eps=EPS, dtype=dtype
    )
    return ImageTower(
        name=decoder.name,
        blocks=_blocks(decoder, vision, patches, taken),
        merger=_merger(replace(decoder, ops=[]), patches, rows),
        patches=patches,
        rows=rows,
        tokens=ImageTokens(start=tokens["vision_start"], image=tokens["image"], end=tokens["vision_end"]),
    )


def _section(config: ConfigReader, key: str) -> ConfigReader:
    section = config.section(key)
    if section is None:
        raise config.refusal(key, None, "an object is needed")
    return section


def _read_patches(vision: ConfigReader, processor: ConfigReader) -> Patches:
    vision.only("in_channels", 3)
    size, merge = vision.integer("patch_size", 16), vision.integer("spatial_merge_size", 2)
    table = vision.integer("num_position_embeddings", 2304)
    side = int(table**0.5)
    if side * side != table:
        raise vision.refusal("num_position_embeddings", table, "a square number is needed")
    limits = processor.section("size")
    least = limits.integer("shortest_edge", LIMITS[0]) if limits else LIMITS[0]
    most = limits.integer("longest_edge", LIMITS[1]) if limits else LIMITS[1]
    token = (size * merge) ** 2
    mean, std = (
        tuple(processor.numbers(f"image_{name}", 3)) if processor.has(f"image_{name}") else (0.5,) * 3
        for name in ("mean", "std")
    )
    if not LEAST_TOKENS * token <= least <= most or min(std) <= 0:
        why = f"{LEAST_TOKENS * token} pixels at least, no more than longest_edge, and image_std above 0"
        raise processor.refusal("size.shortest_edge", least, why)
    return Patches(
        size=size,
        merge=merge,
        frames=vision.integer("temporal_patch_size", 2),
        table_side=side,
        mean=mean,
        std=std,
        min_pixels=least,
        max_pixels=min(most, max(least, MOST_TOKENS * token)),
    )


def _axes(text: ConfigReader) -> tuple[int, ...]:
    """Rows and columns alternate with time, as long as their sections go."""
    rope = text.section("rope_parameters") or text.section("rope_scaling")
    sections = rope.integers("mrope_section") if rope and rope.has("mrope_section") else SECTIONS
    half = text.integer("head_dim", 128) // 2
    if len(sections) != 3 or sum(sections) != half:
        raise text.refusal("mrope_section", sections, f"three sections of {half} frequencies are needed")
    return tuple(j % 3 if j % 3 and j < 3 * sections[j % 3] else 0 for j in range(half))


def _blocks(decoder: Decoder, vision: ConfigReader, patches: Patches, taken: list[int]) -> Program:
    width, heads = decoder.width, vision.integer("num_heads")
    if width % (4 * heads):
        raise vision.refusal(
            "num_heads", heads, f"heads that share {width}, each a multiple of 4, are needed"
        )
    padded = PaddedHeads(count=heads, own=width // heads)
    places = read_features(decoder, PLACE_WIDTH, DType.F32)
    x = _embedded(decoder, patches)
    told = list[Value]()
    for number in range(vision.integer("depth")):
        layer = Layer(decoder, number, f"{BLOCKS}.{number}")
        before = normed(decoder, x, layer.name("attention"), layer.tensor("norm1"))
        x = padded.attend(layer, before.rounded, places, stream=x)
        before = normed(decoder, x, layer.name("mlp"), layer.tensor("norm2"))
        up = [(layer.tensor("mlp.linear_fc1"), vision.integer("intermediate_size"))]
        x = plain_mlp(layer, before.rounded, x, up, "mlp.linear_fc2", act="normal_tanh", bias=True)
        told += [x] if number in taken else []
    told.append(normed(decoder, x, "merger", "model.visual.merger.norm").exact)
    tells = [TellFeatures(x=value, first=i * width) for i, value in enumerate(told)]
    return _program(decoder, tells)


def _embedded(decoder: Decoder, patches: Patches) -> Value:
    """The patches times their matrix, and the rows of the table, stretched to the image."""
    width, rows = decoder.width, patches.table_side**2
    stem = "model.visual.patch_embed.proj"
    shape = (width, 3, patches.frames, patches.size, patches.size)
    piece = Piece(tensor=f"{stem}.weight", shape=shape, view=(width, patches.patch_width))
    matrix = Weight(name="patches", shape=piece.view, dtype=decoder.dtype, pieces=(piece,))
    bias = stacked_vector("patches_bias", [(stem, width)], "bias")
    table = Piece(tensor="model.visual.pos_embed.weight", shape=(rows, width), order=(1, 0))
    positions = Weight(name="positions", shape=(width, rows), dtype=decoder.dtype, pieces=(table,))
    x = read_features(decoder, patches.patch_width, first=PLACE_WIDTH)
    weights = read_features(decoder, rows, first=PLACE_WIDTH + patches.patch_width)
    out = Value("patch_rows", Rows.TOKEN, width, DType.F32)
    x = decoder.add(Linear(x=x, weight=matrix, bias=bias, out=out))
    placed = Value("embedded", Rows.TOKEN, width, DType.F32)
    return decoder.add(Linear(x=weights, weight=positions, residual=x, out=placed))


def _merger(decoder: Decoder, patches: Patches, rows: ImageRows) -> Program:
    """The rows of blocks that join layers of the language model are normalised here, four together; those of
    the last block are already."""
    joined, tells = patches.merge**2 * decoder.width, list[TellFeatures]()
    for part in range(1 + rows.deep):
        is_last = part == rows.deep
        stem = "model.visual." + ("merger" if is_last else f"deepstack_merger_list.{part}")
        x = read_features(decoder, joined, decoder.dtype if is_last else DType.F32, first=part * joined)
        if not is_last:
            x = normed(decoder, x, f"merger_{part}", f"{stem}.norm").rounded
        made = _two_products(decoder, x, f"merger_{part}", stem, rows.width)
        tells.append(TellFeatures(x=made, first=0 if is_last else (1 + part) * rows.width))
    return _program(decoder, tells)


def _two_products(decoder: Decoder, x: Value, name: str, stem: str, width: int) -> Value:
    inner = Value(f"{name}_inner", Rows.TOKEN, x.width, DType.F32)
    made = decoder.add(_linear(decoder, x, f"{name}_1", f"{stem}.linear_fc1", inner))
    active = Value(f"{name}_active", Rows.TOKEN, x.width, decoder.dtype)
    made = decoder.add(Gated(x=made, gate=made, act="normal", out=active))
    out = Value(f"{name}_rows", Rows.TOKEN, width, DType.F32)
    return decoder.add(_linear(decoder, made, f"{name}_2", f"{stem}.linear_fc2", out))


def _linear(decoder: Decoder, x: Value, name: str, tensor: str, out: Value) -> Linear:
    weight = stacked_matrix(name, [(tensor, out.width)], x.width, decoder.dtype)
    return Linear(
        x=x, weight=weight, bias=stacked_vector(f"{name}_bias", [(tensor, out.width)], "bias"), out=out
    )


def _program(decoder: Decoder, tells: list[TellFeatures]) -> Program:
    return Program(
        name=decoder.name,
        vocab_size=decoder.vocab_size,
        max_model_len=decoder.max_model_len,
        ops=(*decoder.ops, *tells),
        can_generate=False,
        left_out=("model.", "lm_head."),
    )
