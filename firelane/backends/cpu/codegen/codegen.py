"""A Program as C++: a struct whose run() calls one kernel template after another, shapes as constants. One
translation unit, or two, of the same text."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator
from functools import singledispatch
from typing import NamedTuple

from firelane.backends.cpu.codegen import adapter_calls, encoder_calls, rank_calls
from firelane.backends.cpu.codegen.attention_calls import (
    attention,
    attention_type,
    index_cache,
    index_top_k,
    index_top_k_type,
    latent_cache,
    rope_and_cache,
)
from firelane.backends.cpu.codegen.contract_source import contract_source
from firelane.backends.cpu.codegen.expert_calls import (
    expert_gated_linear,
    expert_linear,
    expert_row_scratch,
    gate_function,
)
from firelane.backends.cpu.codegen.feature_calls import read_features, tell_features
from firelane.backends.cpu.codegen.integer_calls import (
    integer_panels,
    integer_rows,
    multiplies_integers,
    rounding,
)
from firelane.backends.cpu.codegen.layout import LANES, PANEL, Layout
from firelane.backends.cpu.codegen.matrices import DECODERS, packed, panels_of
from firelane.backends.cpu.codegen.operands import at as _at
from firelane.backends.cpu.codegen.operands import at_or_null as _at_or_null
from firelane.backends.cpu.codegen.operands import flag as _flag
from firelane.backends.cpu.codegen.operands import number as _float
from firelane.backends.cpu.codegen.operands import rows as _rows
from firelane.backends.cpu.codegen.operands import tag as _tag
from firelane.backends.cpu.codegen.operands import truth as _truth
from firelane.backends.cpu.codegen.operands import vector as _vector
from firelane.backends.cpu.codegen.recurrent_calls import (
    delta_rule,
    gated,
    recurrence_type,
    short_conv,
    state_space,
)
from firelane.program.ops import (
    AddEmbedding,
    AllReduce,
    Attention,
    AwaitCache,
    Cast,
    DeltaRule,
    Embed,
    ExpertGatedLinear,
    ExpertLinear,
    Gated,
    GatedLinear,
    Gather,
    GatherColumns,
    GatherRows,
    GiveHidden,
    HeadLinear,
    IndexCache,
    IndexTopK,
    LatentCache,
    LayerNorm,
    Linear,
    LoraExpand,
    LoraShrink,
    MergeRows,
    Op,
    Pool,
    ReadFeatures,
    Receive,
    RMSNorm,
    RopeAndCache,
    Route,
    Sample,
    SelectRows,
    Send,
    ShortConv,
    StateSpace,
    TakeRows,
    TellFeatures,
)
from firelane.program.program import computes_own_rows
from firelane.program.values import Value

PARTS = 2
"""Parts that the source can be compiled in, side by side: FIRELANE_PART is 1 or 2, or not defined for all."""
FIRST_PART = Attention | IndexTopK
"""Ops whose kernels take the compiler about as long, with the runtime, as all others. These alone may have
barriers of their own."""
TEMPLATE = """\
// Generated from the program of {name}.
{contract}
#include "kernels.h"
{more}#if FIRELANE_PART != 2
#include "runtime.h"
#endif

#define FIRELANE_CALL(NAME, INDEX)                                                                     \\
  void NAME([[maybe_unused]] Executor<Model>& e, Context& c, [[maybe_unused]] int thread) {{       \\
    [[maybe_unused]] constexpr int op = INDEX;                                                         \\
    [[maybe_unused]] const int tokens = c.step.num_tokens, outputs = c.step.num_rows, logits = c.logit_rows;
#define FIRELANE_OWN_CALL(NAME, INDEX)                                                                 \\
  void NAME([[maybe_unused]] Executor<Model>& e, Context& whole, [[maybe_unused]] int thread) {{   \\
    [[maybe_unused]] constexpr int op = INDEX;                                                         \\
    Context& c = *whole.own;                                                                           \\
    const int tokens = c.step.num_tokens;                                                              \\
    if (tokens == 0) return;

namespace firelane {{

template <class Program>
class Executor;
struct Model;
{declared}

#if FIRELANE_PART != 2
struct Model {{
  static constexpr int kOps = {ops}, kMeetings = {meetings};
  static constexpr bool kReceives = {receives}, kSends = {sends}, kDividesRows = {divides};
  static constexpr MailPart kReceived[] = {{{received}}}, kSent[] = {{{sent}}};
  static constexpr std::size_t kScratchBytes = {scratch}, kScratchRowBytes = {row_scratch};

  static void run(Executor<Model>& e, Context& c, int thread) {{
{body}
  }}
}};

{first}
#endif

#if FIRELANE_PART != 1
{second}
#endif

}}  // namespace firelane

#if FIRELANE_PART != 2
FIRELANE_EXPORTS(firelane::Model)
#endif
"""


def generate(layout: Layout) -> str:
    """The source of `layout.program`: one call and one barrier for each op."""
    ops = layout.program.ops
    scratch = ["std::size_t(64)", *(size for op in ops for size in scratch_of(op, layout))]
    calls = list(_calls(layout))
    is_first = [isinstance(ops[call.op], FIRST_PART) for call in calls]
    texts = [call.text for call in calls]
    return TEMPLATE.format(
        name=layout.program.name,
        contract=contract_source(),
        more=adapter_calls.INCLUDE if layout.adapters.places else "",
        ops=len(ops),
        meetings=1 + len(layout.meetings),
        receives=_truth(layout.received),
        sends=_truth(layout.sent),
        divides=_truth(layout.program.row_ranks > 1),
        received=rank_calls.mail_parts(layout.received, layout),
        sent=rank_calls.mail_parts(layout.sent, layout),
        scratch=f"(largest({', '.join(dict.fromkeys(scratch))}) + 63) / 64 * 64",
        row_scratch=max(row_scratch_of(op, layout) for op in ops),
        declared="\n".join(f"void {call.name}(Executor<Model>&, Context&, int);" for call in calls),
        first="\n".join(itertools.compress(texts, is_first)),
        second="\n".join(itertools.compress(texts, map(operator.not_, is_first))),
        body="\n".join(f"    {call.name}(e, c, thread); e.sync({call.op});" for call in calls),
    )


class Call(NamedTuple):
    """A function of the program, after which threads wait for each other; op: the number of its op; is_own:
    whether it sees this rank's tokens alone."""

    name: str
    op: int
    statement: str
    is_own: bool

    @property
    def text(self) -> str:
        macro = "FIRELANE_OWN_CALL" if self.is_own else "FIRELANE_CALL"
        return f"{macro}({self.name}, {self.op}) {self.statement} }}"


def _calls(layout: Layout) -> Iterator[Call]:
    """Inputs of integer products are rounded before the op, unless the last ones were the same."""
    held = ""
    for index, op in enumerate(layout.program.ops):
        is_own = computes_own_rows(op) and not isinstance(op, TakeRows)
        if multiplies_integers(op, layout):
            wanted = rounding(op, layout)
            if wanted != held:
                yield Call(f"round_{index}", index, wanted, is_own)
            held = wanted
        yield Call(f"op_{index}", index, call(op, layout), is_own)


@singledispatch
def call(op: Op, layout: Layout) -> str:
    """The C++ statement that runs `op`."""
    raise NotImplementedError(f"no CPU kernel for {type(op).__name__}")


call.register(RopeAndCache, rope_and_cache)
call.register(Attention, attention)
call.register(LatentCache, latent_cache)
call.register(IndexCache, index_cache)
call.register(IndexTopK, index_top_k)
call.register(Gated, gated)
call.register(ShortConv, short_conv)
call.register(DeltaRule, delta_rule)
call.register(StateSpace, state_space)
call.register(ExpertGatedLinear, expert_gated_linear)
call.register(ExpertLinear, expert_linear)
call.register(AllReduce, rank_calls.all_reduce)
call.register(Gather, rank_calls.gather)
call.register(TakeRows, rank_calls.take_rows)
call.register(AwaitCache, rank_calls.await_cache)
call.register(GatherRows, rank_calls.gather_rows)
call.register(GatherColumns, rank_calls.gather_columns)
call.register(Send, rank_calls.send)
call.register(Receive, rank_calls.receive)
call.register(ReadFeatures, read_features)
call.register(TellFeatures, tell_features)
call.register(AddEmbedding, encoder_calls.add_embedding)
call.register(GiveHidden, encoder_calls.give_hidden)
call.register(LayerNorm, encoder_calls.layer_norm)
call.register(MergeRows, encoder_calls.merge_rows)
call.register(Pool, encoder_calls.pool)
call.register(LoraShrink, adapter_calls.lora_shrink)
call.register(LoraExpand, adapter_calls.lora_expand)


def scratch_of(op: Op, layout: Layout) -> list[str]:
    """C++ expressions of the bytes of scratch that a thread needs for `op`."""
    if op.products:
        if multiplies_integers(op, layout):
            return [f"{integer_panels(op, layout)}::kScratchBytes"]
        used = [product.weight for product in op.products if product.weight in layout.coded]
        return [f"{panels_of(weight, layout)}::kScratchBytes" for weight in used]
    if isinstance(op, Embed) and op.table in layout.coded:
        return [f"std::size_t({op.table.shape[1] * PANEL * 2})"]
    if isinstance(op, Attention):
        return [f"sizeof({attention_type(op, layout)}::Scratch)"]
    if isinstance(op, IndexTopK):
        return [f"sizeof({index_top_k_type(op, layout)}::Scratch)"]
    if isinstance(op, DeltaRule | StateSpace):
        return [f"sizeof({recurrence_type(op, layout)}::Scratch)"]
    if isinstance(op, Sample):
        return [f"kSampleScratchBytes<{op.logits.width}>"]
    return []


def row_scratch_of(op: Op, layout: Layout) -> int:
    """Bytes of scratch that a thread needs for `op` for each token row."""
    return expert_row_scratch(op, layout) if isinstance(op, ExpertGatedLinear | ExpertLinear) else 0


@call.register
def _(op: Embed, layout: Layout) -> str:
    vocab, width = op.table.shape
    of, form = op.part.of if op.part else vocab, layout.coded.get(op.table)
    rows = f"TablePart{{c.parts[op].first, c.parts[op].count, {of}}}"
    kernel = f"embed<{_tag(op.table.dtype)}" if form is None else f"embed_coded<{DECODERS[form]}"
    arguments = f"{rows}, {packed(op.table, layout)}, {_float(op.scale)}, {_at(op.out, layout)}"
    return f"{kernel}, {width}, {layout.stride(op.out)}>(c, thread, {arguments});"


@call.register
def _(op: RMSNorm, layout: Layout) -> str:
    strides = [layout.stride(value) for value in (op.x, op.residual or op.x, op.out)]
    flags = [_flag(operand) for operand in (op.weight, op.residual, op.scalar)]
    shape = (
        f"{_tag(op.out.dtype)}, {op.x.width}, {op.groups}, {', '.join(map(str, strides))}, {', '.join(flags)}"
    )
    fields = [
        _at(op.x, layout),
        _vector(op.weight, layout),
        _float(op.eps),
        _at_or_null(op.residual, layout),
        _vector(op.scalar, layout),
        _at(op.out, layout),
    ]
    return f"RmsNorm<{shape}>{{{', '.join(fields)}}}.run(c, thread, {_rows(op.x)});"


@call.register
def _(op: Cast, layout: Layout) -> str:
    shape = f"{_tag(op.out.dtype)}, {op.x.width}, {layout.stride(op.x)}, {layout.stride(op.out)}"
    return f"cast<{shape}>(c, thread, {_rows(op.x)}, {_at(op.x, layout)}, {_at(op.out, layout)});"


@call.register
def _(op: SelectRows, layout: Layout) -> str:
    shape = f"{op.x.width}, {layout.stride(op.x)}, {layout.stride(op.out)}"
    return f"select_rows<{shape}>(c, thread, {_at(op.x, layout)}, {_at(op.out, layout)});"


def _product(op: Linear | GatedLinear, panels: int, store: str, layout: Layout) -> str:
    rows = "logits" if op == layout.program.head else _rows(op.x)
    kind, inputs = panels_of(op.weight, layout, layout.input_segments(op)), _at(op.x, layout)
    stride = layout.stride(op.x)
    if multiplies_integers(op, layout):
        kind, inputs = integer_panels(op, layout), integer_rows(layout)
        stride = layout.integer_row_bytes(op)
    arguments = f"{rows}, {inputs}, {kind}{{{packed(op.weight, layout)}}}, {store}"
    return f"linear<{panels}, {stride}>(c, thread, op, {arguments});"


@call.register
def _(op: Linear, layout: Layout) -> str:
    stride = layout.stride(op.residual or op.out)
    flags = [_flag(op.bias), _flag(op.residual), _truth(op.scale != 1.0), _truth(op.softcap)]
    shape = f"{layout.stride(op.out)}, {stride}, {', '.join(flags)}"
    fields = [
        _at(op.out, layout),
        _vector(op.bias, layout),
        _at_or_null(op.residual, layout),
        _float(op.scale),
        _float(op.softcap),
    ]
    store = f"StoreF32<{shape}>{{{', '.join(fields)}}}"
    product = _product(op, -(-op.out.width // PANEL), store, layout)
    return f"{_give_hidden(op.x, layout)} {product}" if op == layout.program.head else product


def _give_hidden(hidden: Value, layout: Layout) -> str:
    """Beside the head's product, which is the last op to read them."""
    shape = f"{_tag(hidden.dtype)}, {hidden.width}, {layout.stride(hidden)}"
    return f"give_hidden<{shape}>(c, thread, {_at(hidden, layout)});"


@call.register
def _(op: GatedLinear, layout: Layout) -> str:
    kind, function = gate_function(op.gate)
    shape = f"{_tag(op.out.dtype)}, {layout.stride(op.out)}, {_flag(op.bias)}, {kind}"
    store = f"StoreGated<{shape}>{{{_at(op.out, layout)}, {_vector(op.bias, layout)}, {function}}}"
    if op.delta is not None:
        store = adapter_calls.delta_store(op.delta, store, op.out.width, layout)
    return _product(op, -(-op.out.width // LANES), store, layout)


@call.register
def _(op: HeadLinear, layout: Layout) -> str:
    heads, n, k = op.weight.shape
    store = (
        f"StoreHead<{_tag(op.out.dtype)}, {n}, {op.keep}, {layout.stride(op.out)}>{{{_at(op.out, layout)}}}"
    )
    sizes = f"{heads}, {-(-n // PANEL)}, {k}, {op.keep}, {layout.stride(op.x)}"
    panels = f"{panels_of(op.weight, layout)}{{{packed(op.weight, layout)}}}"
    return f"head_linear<{sizes}>(c, thread, op, {_rows(op.x)}, {_at(op.x, layout)}, {panels}, {store});"


@call.register
def _(op: Sample, layout: Layout) -> str:
    shape = f"{op.logits.width}, {layout.stride(op.logits)}"
    return f"if (c.parts[op].count) sample<{shape}>(c, thread, {_at(op.logits, layout)}, op);"


@call.register
def _(op: Route, layout: Layout) -> str:
    g = op.groups
    strides = ", ".join(str(layout.stride(value)) for value in (op.logits, op.picks, op.shares))
    groups = f"ExpertGroups<{g.count}, {g.keep}, {g.best}>" if g else "NoGroups"
    score = "Score::kSigmoid" if op.score == "sigmoid" else "Score::kSoftmax"
    normalise = "true" if op.normalise else "false"
    shape = f"{op.logits.width}, {op.picks.width}, {score}, {groups}, {normalise}, {strides}"
    vectors = f"{_vector(op.bias, layout)}, {_vector(op.factors, layout)}, {_float(op.scale)}"
    outputs = f"{_at(op.picks, layout)}, {_at(op.shares, layout)}"
    arguments = f"RouteArgs{{{_at(op.logits, layout)}, {vectors}, {outputs}}}"
    return f"Route<{shape}>::run(c, thread, {_rows(op.logits)}, {arguments});"
