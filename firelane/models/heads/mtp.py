"""Layers that predict one more token (DeepSeek V3, 2024, "multi-token prediction"), which come with a model:
one that reads the embedding of the next token beside the hidden state behind the model's last norm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from firelane.models.blocks.blocks import Decoder, Layer, head
from firelane.models.blocks.decoder_config import read_layers
from firelane.models.blocks.features import read_features
from firelane.models.blocks.stacked import norm_vector
from firelane.models.blocks.streams import Streams
from firelane.models.config.reader import ConfigReader
from firelane.models.heads.draft_head import DraftHead
from firelane.program.ops import Linear, RMSNorm, TellFeatures
from firelane.program.program import Program
from firelane.program.recipes import Piece
from firelane.program.values import DType, Rows, Value, Weight

TABLE = "model.embed_tokens.weight"
Block = Callable[[Layer, Value], Value]
"""Adds one decoder layer, and gives the stream behind it."""


@dataclass(frozen=True, kw_only=True)
class PredictorNames:
    """Tensors of a predicting layer, without the last parts of their names. The norms of the embedding and of
    the hidden state, what joins both, and the norm before the head."""

    embedding: str
    hidden: str
    join: str
    norm: str
    hidden_first: bool = False
    """The order of both in the matrix that joins them."""


@dataclass(frozen=True, kw_only=True)
class PredictingLayer:
    """One of them. number: by which its weights are named here; prefix: as Layer.prefix."""

    number: int
    prefix: str = ""
    names: PredictorNames


QWEN_NAMES = PredictorNames(
    embedding="mtp.pre_fc_norm_embedding", hidden="mtp.pre_fc_norm_hidden", join="mtp.fc", norm="mtp.norm"
)
"""The names in Qwen3-Next and its successors, whose layers share all but their blocks."""


def qwen_predictor(decoder: Decoder, block: Block, count: int) -> DraftHead:
    """The head of Qwen3-Next and its successors, with so many layers. decoder: without ops."""
    numbers = range(count)
    layers = [PredictingLayer(number=n, prefix=f"mtp.layers.{n}", names=QWEN_NAMES) for n in numbers]
    return predictor_of(decoder, layers, block, left_out=("mtp.layers.",) if count > 1 else ())


def nextn_predictor(
    config: ConfigReader, decoder: Decoder, block: Block, *, norm: str = "shared_head.norm"
) -> DraftHead:
    """The head of models whose predicting layers are further ones of their own, as in DeepSeek V3. decoder:
    without ops; norm: the name of the norm before the head. Raises UnsupportedModelError where there are
    none."""
    first, count = read_layers(config), count_predictors(config, "num_nextn_predict_layers")
    numbers = range(first, first + count)
    layers = [PredictingLayer(number=n, names=_nextn_names(n, norm)) for n in numbers]
    return predictor_of(decoder, layers, block)


def _nextn_names(layer: int, norm: str) -> PredictorNames:
    place = f"model.layers.{layer}"
    return PredictorNames(
        embedding=f"{place}.enorm", hidden=f"{place}.hnorm", join=f"{place}.eh_proj", norm=f"{place}.{norm}"
    )


def count_predictors(config: ConfigReader, key: str) -> int:
    """The number of predicting layers. Raises UnsupportedModelError, naming the key that counts them,
    where there are none."""
    count = config.count(key, 0)
    if not count:
        raise config.refusal(key, config.value(key), "the checkpoint has no layer that predicts tokens")
    return count


def predictor_of(
    decoder: Decoder, layers: Sequence[PredictingLayer], block: Block, *, left_out: tuple[str, ...] = ()
) -> DraftHead:
    """The head that drafts with these layers of a model, the first token with the first one, and so on.
    decoder: without ops; left_out: as Program.left_out, beside the model's own tensors."""
    left_out = ("model.", "lm_head.", *left_out)
    programs = [replace(_program(decoder, layer, block), left_out=left_out) for layer in layers]
    return DraftHead(
        program=programs[0],
        further=tuple(programs[1:]),
        width=decoder.width,
        target_width=decoder.width,
        own_at=decoder.width,
        table=TABLE,
    )


def _program(model: Decoder, layer: PredictingLayer, block: Block) -> Program:
    """One layer's. What it tells of a row, for the next token's row to read, is the hidden state behind its
    own last norm."""
    decoder, names = replace(model, ops=[], streams=Streams()), layer.names
    x = block(Layer(decoder, layer.number, layer.prefix), _joined(decoder, names))
    told = Value("told", Rows.TOKEN, decoder.width, DType.F32)
    norm = norm_vector("norm", names.norm, decoder.width, plus=decoder.norm_plus)
    decoder.add(RMSNorm(x=x, weight=norm, eps=decoder.eps, out=told))
    decoder.ops.append(TellFeatures(x=told, first=0))
    made = decoder.program(head(decoder, x, tensor=names.norm))
    return replace(made, name=f"{decoder.name}_mtp")


def _joined(decoder: Decoder, names: PredictorNames) -> Value:
    """The layer's input: embedding and hidden state, each normalised, side by side, times the joining
    matrix."""
    if names.hidden_first:
        return _joined_apart(decoder, names)
    width, both = decoder.width, 2 * decoder.width
    row = read_features(decoder, both, DType.F32)
    pieces = tuple(
        Piece(tensor=f"{name}.weight", shape=(width,), plus=decoder.norm_plus)
        for name in (names.embedding, names.hidden)
    )
    weight = Weight(name="row_norm", shape=(both,), dtype=DType.F32, pieces=pieces)
    normed = Value("row_normed", Rows.TOKEN, both, decoder.dtype)
    decoder.add(RMSNorm(x=row, weight=weight, eps=decoder.eps, groups=2, out=normed))
    join = Weight.stored("join", (width, both), decoder.dtype, f"{names.join}.weight")
    return decoder.add(Linear(x=normed, weight=join, out=Value("joined", Rows.TOKEN, width, DType.F32)))


def _joined_apart(decoder: Decoder, names: PredictorNames) -> Value:
    """The same where the matrix has the columns of the hidden state first: each has a product of its own."""
    embedding = _joined_part(decoder, "embedding", names.embedding, names.join, None)
    return _joined_part(decoder, "hidden", names.hidden, names.join, embedding)


def _joined_part(decoder: Decoder, part: str, norm: str, join: str, add: Value | None) -> Value:
    """The embedding, or the hidden state and what the embedding gave: `add`."""
    width, first = decoder.width, 0 if add is None else decoder.width
    row = read_features(decoder, width, DType.F32, first=first)
    normed = Value(f"{part}_normed", Rows.TOKEN, width, decoder.dtype)
    weight = norm_vector(f"{part}_norm", norm, width, plus=decoder.norm_plus)
    decoder.add(RMSNorm(x=row, weight=weight, eps=decoder.eps, out=normed))
    columns = range(width - first, 2 * width - first)
    piece = Piece(tensor=f"{join}.weight", shape=(width, 2 * width), columns=columns)
    matrix = Weight(name=f"{part}_join", shape=(width, width), dtype=decoder.dtype, pieces=(piece,))
    out = Value(f"{part}_joined", Rows.TOKEN, width, DType.F32)
    return decoder.add(Linear(x=normed, weight=matrix, residual=add, out=out))
