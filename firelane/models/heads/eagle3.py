"""EAGLE-3 heads (Li et al., 2025): one Llama layer that reads the embedding of the next token beside what the
target has computed, as SpecForge publishes them (LlamaForCausalLMEagle3) and as speculators does."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from firelane.contract.span import CAUSAL, Span, Window
from firelane.errors import CheckpointError
from firelane.models.blocks.blocks import Decoder, Layer, attend, head, mlp
from firelane.models.blocks.decoder_config import SLIDING, read_gate, read_heads, read_layer_types
from firelane.models.blocks.features import read_features
from firelane.models.blocks.projections import SEPARATE, Projections
from firelane.models.blocks.rope import Rope, read_rope
from firelane.models.blocks.stacked import norm_vector
from firelane.models.config.reader import ConfigReader, read_dtype
from firelane.models.heads.draft_head import DraftHead, TargetSizes
from firelane.program.ops import HeadShape, Linear, RMSNorm, TellFeatures
from firelane.program.values import DType, Rows, Value, Weight

LAYER_CONFIG = "transformer_layer_config"
"""The section of speculators' configs that describes the layer."""
ARCHITECTURES = (
    "LlamaForCausalLMEagle3",
    "Eagle3LlamaForCausalLM",
    "Eagle3Speculator",
    "Eagle3DraftModel",
)
STREAMS = "eagle_aux_hidden_state_layer_ids"
MAX_STREAMS = 16
WITHOUT_EFFECT = (
    "speculators_config",
    "speculators_version",
    "has_no_defaults_at_init",
    "embed_requires_grad",
)
"""Keys that say how the head was trained, and how others draft with it."""


PREFIXES = ("", "model.")


class HeadTensors:
    """Looks names up in a checkpoint, with and without `model.` before them."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)

    def get(self, *stems: str) -> str:
        """The first of these that tensors' names begin with, as they are there, without a dot behind it; ""
        where there is none."""
        for stem in stems:
            for prefix in PREFIXES:
                found = f"{prefix}{stem}"
                if any(name.startswith(f"{found}.") for name in self._names):
                    return found
        return ""

    def find(self, *stems: str) -> str:
        """The same. Raises CheckpointError where there is none."""
        found = self.get(*stems)
        if not found:
            raise CheckpointError(f"the head has no tensor {' or '.join(stems)}: fetch it again")
        return found

    def whole(self, name: str) -> str:
        """The tensor of exactly this name, as it is there; "" where there is none."""
        return next((p + name for p in PREFIXES if p + name in self._names), "")

    def left_out(self, *stems: str) -> tuple[str, ...]:
        """Beginnings of names for Program.left_out."""
        return tuple(prefix + stem for stem in stems for prefix in PREFIXES)


def eagle3_head(config: Mapping[str, Any], tensors: Collection[str], target: TargetSizes) -> DraftHead:
    """The head that `config` (the content of its config.json) describes. tensors: names of its checkpoint's.
    Raises UnsupportedModelError for a head that is none, or of another target."""
    reader = ConfigReader(config, where="config.json of the EAGLE-3 head", max_model_len=target.max_model_len)
    _check_architecture(reader)
    layer = reader.section(LAYER_CONFIG)
    return _Eagle3(reader, layer or reader, HeadTensors(tensors), target, is_nested=layer is not None).head()


def _check_architecture(config: ConfigReader) -> None:
    names = config.strings("architectures")
    if len(names) != 1 or names[0] not in ARCHITECTURES:
        raise config.refusal("architectures", names, f"one of {', '.join(ARCHITECTURES)} is needed")
    kind = config.string("speculators_model_type", "eagle3")
    if kind != "eagle3":
        raise config.refusal("speculators_model_type", kind, "only eagle3 is supported")


class _Eagle3:
    """The head while it is made. config: its own keys; layer: those of its layer, which may be the same."""

    def __init__(
        self,
        config: ConfigReader,
        layer: ConfigReader,
        tensors: HeadTensors,
        target: TargetSizes,
        *,
        is_nested: bool,
    ) -> None:
        self._config, self._layer_config, self._tensors, self._target = config, layer, tensors, target
        self._streams = self._read_streams()
        self._target_width = config.integer("target_hidden_size", target.width)
        self._decoder = self._read_decoder()
        self._norm_first = config.boolean("norm_before_residual", is_nested)
        self._check_target()
        self._layer = Layer(self._decoder, 0, tensors.find("midlayer", "layers.0"))

    def head(self) -> DraftHead:
        config, decoder, width = self._layer_config, self._decoder, self._decoder.width
        heads, gate = read_heads(config), read_gate(config)
        rope, span = read_rope(config, head_dim=heads.head_dim), self._read_span()
        for key in ("attention_bias", "mlp_bias"):
            config.only(key, False)
        feature = self._projected()
        x = self._attention(feature, heads, rope, span)
        x = mlp(self._layer, x, config.integer("intermediate_size"), gate=gate)
        norm = self._tensors.find("norm")
        told = self._normed(x, norm) if self._config.boolean("norm_output", False) else x
        decoder.ops.append(TellFeatures(x=told, first=0))
        program = decoder.program(head(decoder, x, tensor=norm))
        self._finish()
        table = self._tensors.get("embed_tokens")
        return DraftHead(
            program=replace(
                program,
                left_out=self._tensors.left_out("d2t", "t2d", "embed_tokens"),
                unknown_keys=self._config.unknown,
            ),
            width=width,
            target_width=len(self._streams) * self._target_width,
            own_at=width + len(self._streams) * self._target_width,
            streams=self._streams,
            table=f"{table or 'model.embed_tokens'}.weight",
            has_table=bool(table),
            token_ids=self._tensors.whole("d2t"),
        )

    def _read_streams(self) -> tuple[int, ...]:
        config, layers = self._config, self._target.layers
        inner = config.section("eagle_config")
        for place in (config, inner):
            if place is not None:
                place.only("use_aux_hidden_state", True)
        place = inner if inner is not None and inner.has(STREAMS) else config
        streams = tuple(place.integers(STREAMS)) or (2, layers // 2, layers - 3)
        if inner is not None:
            inner.finish()
        if len(streams) > MAX_STREAMS or not all(0 <= stream <= layers for stream in streams):
            raise place.refusal(STREAMS, list(streams), f"the target has streams 0 to {layers}")
        return streams

    def _read_decoder(self) -> Decoder:
        own, config = self._config, self._layer_config
        vocab = own.integer("draft_vocab_size", config.integer("vocab_size"))
        config.only("num_hidden_layers", 1)
        config.ignore("max_position_embeddings", "max_window_layers")
        for reader in (own, config):
            reader.only("tie_word_embeddings", False)
        dtype = read_dtype(config if config.has("dtype") or config.has("torch_dtype") else own)
        for reader in (own, config):
            reader.ignore("dtype", "torch_dtype")
        return Decoder(
            name="eagle3",
            vocab_size=vocab,
            max_model_len=self._target.max_model_len,
            width=config.integer("hidden_size"),
            eps=config.number("rms_norm_eps", 1e-6),
            dtype=dtype,
        )

    def _check_target(self) -> None:
        own, config, target = self._config, self._layer_config, self._target
        vocab = config.integer("vocab_size")
        if vocab != target.vocab_size:
            raise config.refusal("vocab_size", vocab, f"the target's is {target.vocab_size}")
        if self._target_width != target.width:
            why = f"the target's stream is {target.width} wide"
            raise own.refusal("target_hidden_size", self._target_width, why)
        if not self._tensors.get("embed_tokens") and self._decoder.width != target.width:
            why = f"without embed_tokens of its own, the target's {target.width} is needed"
            raise config.refusal("hidden_size", self._decoder.width, why)
        if not self._tensors.whole("d2t") and self._decoder.vocab_size != vocab:
            why = f"there is no d2t, which says which tokens of the target's {vocab} these are"
            raise own.refusal("draft_vocab_size", self._decoder.vocab_size, why)

    def _read_span(self) -> Span:
        config = self._layer_config
        kinds = read_layer_types(config, 1)
        if SLIDING not in kinds:
            config.ignore("sliding_window", "use_sliding_window")
            return CAUSAL
        config.ignore("use_sliding_window")
        return Window(config.integer("sliding_window"))

    def _projected(self) -> Value:
        """The value that the layer reads beside the embedding: the target's streams times fc, and what
        the head has told as it is."""
        decoder, width = self._decoder, self._decoder.width
        count, each = len(self._streams), self._target_width
        own = self._part(width + count * each, width)
        if self._config.boolean("fc_norm", False):
            return self._sum_of_normed(own)
        joined = self._part(width, count * each)
        norm = self._config.boolean("norm_before_fc", False)
        read = self._layer_input(joined, "target", self._tensors.find("input_norm") if norm else None)
        weight = Weight.stored(
            "fc", (width, count * each), decoder.dtype, f"{self._tensors.find('fc')}.weight"
        )
        return decoder.add(Linear(x=read, weight=weight, residual=own, out=self._value("feature", width)))

    def _sum_of_normed(self, total: Value) -> Value:
        """The same where each stream has a norm of its own: a product each, summed."""
        decoder, width, each = self._decoder, self._decoder.width, self._target_width
        if self._config.boolean("norm_before_fc", False):
            raise self._config.refusal("fc_norm", True, "either this or norm_before_fc is supported")
        shape, tensor = (width, len(self._streams) * each), f"{self._tensors.find('fc')}.weight"
        for number in range(len(self._streams)):
            stream = self._part(width + number * each, each)
            read = self._layer_input(stream, f"target_{number}", self._tensors.find(f"fc_norm.{number}"))
            whole = Weight.stored(f"fc_{number}", shape, decoder.dtype, tensor)
            weight = whole.cut(columns=range(number * each, (number + 1) * each))
            out = self._value(f"feature_{number}", width)
            total = decoder.add(Linear(x=read, weight=weight, residual=total, out=out))
        return total

    def _attention(self, feature: Value, heads: HeadShape, rope: Rope, span: Span) -> Value:
        """The stream behind attention to both the embedding and the feature, which the query, key and value
        matrices read side by side."""
        layer, width = self._layer, self._decoder.width
        embedded = self._part(0, width)
        embedding_in = layer.read(embedded, "embedding", "input_layernorm")
        names = tuple(layer.tensor(f"self_attn.{tensor}") for tensor in SEPARATE.qkv)
        projections = Projections(heads=heads, layout=rope.layout, inputs=2 * width, tensors=names)
        stream, feature_in = self._feature_in(feature)
        qkv: Value | None = None
        for part, x in enumerate((embedding_in, feature_in)):
            weight = self._half(projections, part)
            out = self._value(f"qkv_{part}", projections.rows)
            qkv = self._decoder.add(Linear(x=x, weight=weight, residual=qkv, out=out))
        assert qkv is not None
        attended = attend(layer, qkv, heads, rope, span=span)
        end = layer.stream("middle")
        return layer.add_to_stream(
            attended, "output", "self_attn.o_proj", end, stream=stream, bias=False, norm=None
        )

    def _feature_in(self, feature: Value) -> tuple[Value, Value]:
        """The beginning of the residual stream, and what the matrices read of it."""
        if not self._norm_first:
            return feature, self._layer.read(feature, "feature", "hidden_norm")
        normed = self._normed(feature, self._layer.tensor("hidden_norm"), "feature_normed")
        return normed, self._layer.read(normed, "feature", None)

    def _half(self, projections: Projections, part: int) -> Weight:
        width, dtype = self._decoder.width, self._decoder.dtype
        whole = Weight(
            name=self._layer.name(f"qkv_{part}"),
            shape=(projections.rows, 2 * width),
            dtype=dtype,
            pieces=projections.matrix(),
        )
        return whole.cut(columns=range(part * width, (part + 1) * width))

    def _part(self, first: int, width: int) -> Value:
        return read_features(self._decoder, width, DType.F32, first=first)

    def _value(self, name: str, width: int, dtype: DType = DType.F32) -> Value:
        return Value(name, Rows.TOKEN, width, dtype)

    def _layer_input(self, x: Value, name: str, norm: str | None) -> Value:
        """x as a matrix product takes it."""
        if norm is None:
            return self._layer.read(x, name, None)
        return self._normed(x, norm, f"{name}_in", self._decoder.dtype)

    def _normed(self, x: Value, tensor: str, name: str = "told", dtype: DType = DType.F32) -> Value:
        weight = norm_vector(f"{name}_norm", tensor, x.width, plus=0.0)
        out = self._value(name, x.width, dtype)
        return self._decoder.add(RMSNorm(x=x, weight=weight, eps=self._decoder.eps, out=out))

    def _finish(self) -> None:
        self._config.ignore(*WITHOUT_EFFECT, "speculators_model_type")
        if self._layer_config is not self._config:
            self._layer_config.ignore("model_type", "architectures")
            self._layer_config.finish()
        self._config.finish()
