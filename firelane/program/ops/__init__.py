"""The op kinds. A new kind is a file here, a kernel in each backend, and a row in the kernel tests."""

from firelane.program.ops.add_embedding import AddEmbedding
from firelane.program.ops.attention import Attention
from firelane.program.ops.base import Op, Product, with_values
from firelane.program.ops.cast import Cast
from firelane.program.ops.collectives import AllReduce, Collective, Gather, GatherColumns, Receive, Send
from firelane.program.ops.embed import Embed
from firelane.program.ops.experts import ExpertGatedLinear, ExpertLinear
from firelane.program.ops.features import ReadFeatures, TellFeatures
from firelane.program.ops.gated import Gated
from firelane.program.ops.gated_linear import GELU, GELU_TANH, RELU2, SILU, Gate, GatedLinear
from firelane.program.ops.head_linear import HeadLinear
from firelane.program.ops.heads import HeadNorm, HeadShape, Temperature
from firelane.program.ops.indexer import IndexCache, IndexTopK
from firelane.program.ops.latent import LatentCache
from firelane.program.ops.layer_norm import LayerNorm
from firelane.program.ops.linear import Linear
from firelane.program.ops.low_rank import Adapted, LoraExpand, LoraShrink, LowRankPart
from firelane.program.ops.merge_rows import MergeRows
from firelane.program.ops.pool import GiveHidden, Pool, PoolKind
from firelane.program.ops.recurrent.delta_rule import DeltaRule, DeltaShape
from firelane.program.ops.recurrent.short_conv import ShortConv
from firelane.program.ops.recurrent.state_space import StateShape, StateSpace
from firelane.program.ops.rms_norm import RMSNorm
from firelane.program.ops.rope import RopeAndCache, Rotary
from firelane.program.ops.route import Groups, Route
from firelane.program.ops.row_shares import AwaitCache, GatherRows, TakeRows
from firelane.program.ops.sample import Sample
from firelane.program.ops.select_rows import SelectRows

__all__ = [
    "GELU",
    "GELU_TANH",
    "RELU2",
    "SILU",
    "Adapted",
    "AddEmbedding",
    "AllReduce",
    "Attention",
    "AwaitCache",
    "Cast",
    "Collective",
    "DeltaRule",
    "DeltaShape",
    "Embed",
    "ExpertGatedLinear",
    "ExpertLinear",
    "Gate",
    "Gated",
    "GatedLinear",
    "Gather",
    "GatherColumns",
    "GatherRows",
    "GiveHidden",
    "Groups",
    "HeadLinear",
    "HeadNorm",
    "HeadShape",
    "IndexCache",
    "IndexTopK",
    "LatentCache",
    "LayerNorm",
    "Linear",
    "LoraExpand",
    "LoraShrink",
    "LowRankPart",
    "MergeRows",
    "Op",
    "Pool",
    "PoolKind",
    "Product",
    "RMSNorm",
    "ReadFeatures",
    "Receive",
    "RopeAndCache",
    "Rotary",
    "Route",
    "Sample",
    "SelectRows",
    "Send",
    "ShortConv",
    "StateShape",
    "StateSpace",
    "TakeRows",
    "TellFeatures",
    "Temperature",
    "with_values",
]
