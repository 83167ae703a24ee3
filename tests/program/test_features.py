"""Features: programs that tell streams and hidden states, and the ops that tell and read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from firelane.contract import SCORE, SlotState, StepInputs, StepLimits
from firelane.errors import UnsupportedModelError, UsageError
from firelane.models.registry import load_program
from firelane.parallel.ranks import RankLayout, rank_program
from firelane.program.features import with_hidden, with_streams
from firelane.program.ops import ReadFeatures, RMSNorm, SelectRows, TellFeatures
from firelane.program.program import Program
from firelane.program.reference import ReferenceExecutor
from firelane.program.reference_step import ReferenceStep, rounded
from firelane.program.values import DType, Rows, Value
from tests.models.families import FAMILIES, config_of
from tests.models.features import READ, TOLD, WIDTH, features_program, plain_program
from tests.program.fakes import Fake, fake_program

LIMITS = StepLimits(
    max_num_seqs=2,
    max_num_batched_tokens=16,
    max_output_rows=8,
    max_model_len=64,
    block_size=16,
    num_blocks=8,
)
F32 = Value("a", Rows.TOKEN, 6, DType.F32)
WIDE = Value("b", Rows.TOKEN, 4, DType.BF16)


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_knows_its_streams(family: str) -> None:
    """One in front of each layer, which the first op of the layer reads, and one behind the last."""
    program = load_program(config_of(family, "bfloat16"))
    last = len(program.streams) - 1
    told = with_hidden(with_streams(program, range(last + 1)))
    assert told.features_out == (last + 2) * program.hidden_width
    assert told.weights == program.weights
    assert (told.streams, told.head, told.features_in) == (program.streams, program.head, 0)
    (select,) = (op for op in program.ops if isinstance(op, SelectRows))
    assert program.streams[-1] == select.x
    for number, stream in enumerate(program.streams[:-1]):
        reader = next(
            op for op in program.ops if op.outputs and op.outputs[0].name.startswith(f"layers.{number}.")
        )
        assert stream in reader.inputs


@pytest.mark.parametrize("family", ["llama3", "deepseek_v3", "qwen3_next", "gemma4_e"])
@pytest.mark.parametrize("layout", [RankLayout(), RankLayout(tp=2)], ids=["one rank", "two ranks"])
def test_passes_keep_streams_and_what_is_told(family: str, layout: RankLayout) -> None:
    program = with_hidden(with_streams(load_program(config_of(family, "bfloat16")), (1, 0)))
    for rank in range(layout.ranks):
        own = rank_program(program, layout, rank)
        made = {value for op in own.ops for value in op.outputs}
        assert made.issuperset(own.streams)
        assert own.streams == program.streams
        assert tells(own) == tells(program)


def tells(program: Program) -> list[TellFeatures]:
    return [op for op in program.ops if isinstance(op, TellFeatures)]


def test_streams_are_told_in_the_order_of_the_layers_that_are_named() -> None:
    program = plain_program(DType.BF16)
    told = with_streams(program, (1, 0, 1))
    places = {(op.x, op.first) for op in tells(told)}
    first, last = program.streams
    assert places == {(last, 0), (first, WIDTH), (last, 2 * WIDTH)}
    assert [op for op in told.ops if not isinstance(op, TellFeatures)] == list(program.ops)
    more = with_hidden(told)
    assert more.features_out == 4 * WIDTH
    assert {op.first for op in tells(more)} == {0, WIDTH, 2 * WIDTH, 3 * WIDTH}


def test_hidden_states_are_told_of_all_rows_and_drawn_of_some() -> None:
    program = plain_program(DType.BF16)
    told = with_hidden(program)
    (tell,) = tells(told)
    norms = [op for op in told.ops if isinstance(op, RMSNorm) and op.out.name.startswith("final")]
    assert [norm.out.rows for norm in norms] == [Rows.TOKEN, Rows.OUTPUT]
    assert norms[0].weight == norms[1].weight
    assert tell.x == norms[0].out
    assert (told.head, told.weights) == (program.head, program.weights)


def test_layers_that_are_not_there_are_refused() -> None:
    program = plain_program(DType.BF16)
    for layer in (-1, 2, 100):
        with pytest.raises(
            UnsupportedModelError, match=f"toy: there is no stream of layer {layer} .*from 0 to 1"
        ):
            with_streams(program, (layer,))
    with pytest.raises(UnsupportedModelError, match="none is known"):
        with_streams(replace(program, streams=()), (0,))


def test_streams_that_hyper_connections_split_are_refused() -> None:
    """A mixture of streams enters a layer, to which nothing is added."""
    program = plain_program(DType.BF16)
    mixed = replace(program.streams[0], name="mixed")
    split = replace(
        program, ops=(*program.ops[:1], Fake(inputs=(program.streams[0],), out=mixed), *program.ops[1:])
    )
    with pytest.raises(
        UnsupportedModelError, match="toy: the stream of layer 0 is split by hyper-connections"
    ):
        with_streams(replace(split, streams=(mixed, program.streams[1])), (1, 0))


def test_a_program_without_a_head_has_no_hidden_states_to_tell() -> None:
    with pytest.raises(UnsupportedModelError, match="fake: it has no head"):
        with_hidden(fake_program(Fake(out=F32)))


def test_several_stages_tell_nothing_and_several_ranks_read_nothing() -> None:
    told = with_streams(load_program(config_of("llama3", "bfloat16")), (1,))
    with pytest.raises(UsageError, match="pipeline parallel 2: no one stage can tell the features of llama"):
        rank_program(told, RankLayout(pp=2), 0)
    with pytest.raises(UsageError, match="2 ranks: toy reads features"):
        rank_program(features_program(DType.BF16), RankLayout(tp=2), 0)


def test_columns_are_told_once_and_read_once() -> None:
    def program(*ops: Fake | TellFeatures | ReadFeatures) -> Program:
        return Program(name="fake", vocab_size=1, max_model_len=1, ops=ops)

    made, other = Fake(out=F32), Fake(out=WIDE)
    assert (
        program(made, other, TellFeatures(x=F32, first=4), TellFeatures(x=WIDE, first=0)).features_out == 10
    )
    for first in (3, 5):
        with pytest.raises(AssertionError, match="fake: columns of features overlap or are missing"):
            program(made, other, TellFeatures(x=F32, first=first), TellFeatures(x=WIDE, first=0))
    assert program(ReadFeatures(out=F32)).features_in == 6
    assert program(ReadFeatures(first=4, out=F32), ReadFeatures(out=WIDE)).features_in == 10
    for first in (3, 5):
        with pytest.raises(AssertionError, match="fake: columns of features overlap or are missing"):
            program(ReadFeatures(first=first, out=F32), ReadFeatures(out=WIDE))


@pytest.mark.parametrize("value", [replace(F32, rows=Rows.OUTPUT), replace(F32, dtype=DType.I32)])
def test_features_are_numbers_of_token_rows(value: Value) -> None:
    with pytest.raises(AssertionError, match="ReadFeatures a"):
        ReadFeatures(out=value)
    with pytest.raises(AssertionError, match="TellFeatures a"):
        TellFeatures(x=value, first=0)


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F32])
def test_the_reference_tells_its_values_by_token_row(dtype: DType) -> None:
    program = features_program(dtype)
    inputs, step = run(program, dtype)
    streams = [step.values[program.streams[layer]] for layer in (1, 0)]
    hidden = step.values[tells(program)[-1].x]
    read = rounded(inputs.features[:5], dtype)
    assert step.features.shape == (5, TOLD)
    np.testing.assert_array_equal(step.features, np.concatenate([read, *streams, hidden], axis=1))
    assert program.head is not None
    np.testing.assert_array_equal(hidden[[1, 4]], step.values[program.head.x])


def test_the_features_of_one_row_change_nothing_in_another_sequence() -> None:
    _, once = run(features_program(DType.F32), DType.F32)
    _, other = run(features_program(DType.F32), DType.F32, changed=4)
    differs = (once.features != other.features).any(axis=1)
    assert differs.tolist() == [False] * 4 + [True]


def run(program: Program, dtype: DType, changed: int | None = None) -> tuple[StepInputs, ReferenceStep]:
    """A step of three tokens of slot 1 and two of slot 0, of which one each is scored. changed: the token row
    whose features are others."""
    rng = np.random.default_rng(1)
    weights = {
        w.name: rounded(rng.standard_normal(w.shape).astype(np.float32) * w.k**-0.5, dtype)
        for w in program.weights
    }
    executor = ReferenceExecutor(program, weights, slots=2, max_len=64)
    state, inputs = SlotState.allocate(LIMITS, program.vocab_size), StepInputs.allocate(LIMITS, READ)
    state.tokens[:, :5] = rng.integers(0, program.vocab_size, (2, 5))
    inputs.features[:5] = rng.standard_normal((5, READ))
    if changed is not None:
        inputs.features[changed] += 1
    inputs.num_chunks, inputs.num_tokens, inputs.num_rows = 2, 5, 2
    inputs.chunk_slot[:2], inputs.chunk_len[:2] = (1, 0), (3, 2)
    inputs.row_token[:2], inputs.row_slot[:2], inputs.row_position[:2] = (1, 4), (1, 0), (1, 1)
    inputs.row_kind[:2] = SCORE
    return inputs, executor.step(inputs, state)
