"""Products with experts' matrices: against plain loops at awkward shapes, and the same bits in every form,
config and company, as of the dense products with the same matrices."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from matrices_harness import coded_matrix, plain_matrix, random_bits, true_values, uncoded_matrix
from products_harness import FORMS, Rows, assert_near, output, random_rows, run_gated, run_linear
from quantised_harness import Form, quantised_matrix, random_part

from firelane.backends.cuda.device.linear_config import LinearConfig
from firelane.backends.cuda.device.shapes import round_up
from firelane.backends.cuda.kernels.matmul.experts import expert_gated, expert_linear, expert_squared
from firelane.backends.cuda.step.row_groups import RowGroups
from firelane.backends.cuda.weights.matrices import FP4, INT4, Matrix
from firelane.program.ops import GELU_TANH, SILU, Gate
from tests.backends.cuda.host_device import poison
from tests.backends.cuda.test_cuda_group_rows import grouped, random_picks

SMALL = LinearConfig(row_tile=16)
MOST_ROWS = 60
CONFIGS = {
    "wide": LinearConfig(row_tile=64, features=128, k_tile=64),
    "slices": LinearConfig(row_tile=128, k_tile=64, warps=8),
}
MXFP4_AND_Q4_K = (
    Form(numbers=FP4, group_size=32, scales=torch.bfloat16),
    Form(numbers=INT4, group_size=32, scales=torch.int8, minima=True, units=True),
)
LIMITS = Gate(alpha=1.702, limit=0.7, up_offset=1.0)


@dataclass(frozen=True, kw_only=True)
class Layer:
    """experts matrices of `rows` features and k inputs, of which each row picks `picks`. parts: bits of each
    of them, or of each one's gate and up."""

    experts: int
    picks: int
    rows: int
    k: int
    gated: bool = False
    has_bias: bool = True
    has_shares: bool = True
    parts: list[np.ndarray] = field(init=False)

    def __post_init__(self) -> None:
        count = self.experts * (2 if self.gated else 1)
        object.__setattr__(
            self, "parts", [random_bits(self.rows, self.k, seed=self.rows + i) for i in range(count)]
        )

    @property
    def bias(self) -> np.ndarray:
        """[experts, rows or both halves]."""
        generator = torch.Generator().manual_seed(self.rows)
        width = len(self.parts) // self.experts * self.rows
        return torch.randn(self.experts, width, generator=generator).numpy()

    def shares(self, rows: int) -> np.ndarray:
        return np.random.default_rng(7).random((MOST_ROWS, self.picks), dtype=np.float32)[:rows]

    def picked(self, rows: int) -> np.ndarray:
        return random_picks(MOST_ROWS, self.picks, self.experts)[:rows]

    def of_expert(self, expert: int) -> list[np.ndarray]:
        halves = len(self.parts) // self.experts
        return self.parts[expert * halves : (expert + 1) * halves]


GATED = Layer(experts=3, picks=2, rows=72, k=80, gated=True)
DOWN = Layer(experts=3, picks=2, rows=80, k=72)
LARGE_GATED = Layer(experts=2, picks=1, rows=100, k=256, gated=True)
LARGE_DOWN = Layer(experts=3, picks=2, rows=200, k=128)


@dataclass(frozen=True)
class Grouped:
    """Operands of a launch besides its matrices."""

    layer: Layer
    rows: Rows

    @property
    def picks(self) -> np.ndarray:
        return self.layer.picked(self.rows.count)

    def groups(self, row_tile: int) -> RowGroups:
        return grouped(self.picks, experts=self.layer.experts, row_tile=row_tile, max_rows=self.rows.max_rows)

    def operands(self, config: LinearConfig) -> dict[str, object]:
        layer, count = self.layer, self.rows.count
        shares = poison(torch.empty(self.rows.max_rows, 64))
        shares[:count, : layer.picks] = torch.from_numpy(layer.shares(count))
        return {
            "groups": self.groups(config.row_tile),
            "experts": layer.experts,
            "picks": layer.picks,
            "bias": torch.from_numpy(layer.bias.reshape(-1)) if layer.has_bias else None,
            "shares": shares if layer.has_shares else None,
            "config": config,
            "max_rows": self.rows.max_rows,
        }


def run_experts_gated(
    matrix: Matrix, layer: Layer, rows: Rows, config: LinearConfig = SMALL, gate: Gate = SILU
) -> np.ndarray:
    """[count, picks * rows]. Nothing else is written."""
    width = layer.picks * layer.rows
    out = output(rows.max_rows, width)
    expert_gated(matrix, rows.x, out, gate=gate, **Grouped(layer, rows).operands(config)).run()
    assert out[rows.count :].isnan().all()
    assert out[:, width:].isnan().all()
    return out[: rows.count, :width].numpy()


def run_experts_linear(matrix: Matrix, layer: Layer, rows: Rows, config: LinearConfig = SMALL) -> np.ndarray:
    """[count, picks, rows], as its reader gets them."""
    parts = poison(torch.empty(layer.picks, rows.max_rows, round_up(layer.rows, 64)))
    expert_linear(matrix, rows.x, parts, **Grouped(layer, rows).operands(config)).run()
    assert parts[:, rows.count :].isnan().all()
    assert parts[:, :, layer.rows :].isnan().all()
    return parts[:, : rows.count, : layer.rows].transpose(0, 1).numpy()


def run_experts_squared(matrix: Matrix, layer: Layer, rows: Rows, config: LinearConfig = SMALL) -> np.ndarray:
    """[count, picks * rows]. Nothing else is written."""
    width = layer.picks * layer.rows
    out = output(rows.max_rows, width)
    expert_squared(matrix, rows.x, out, **Grouped(layer, rows).operands(config)).run()
    assert out[rows.count :].isnan().all()
    assert out[:, width:].isnan().all()
    return out[: rows.count, :width].numpy()


def squared_loops(layer: Layer, rows: Rows) -> np.ndarray:
    out, shares = np.empty((rows.count, layer.picks, layer.rows), np.float32), layer.shares(rows.count)
    for row, slot, expert in slots(layer, rows.count):
        made = true_values(layer.of_expert(expert)[0]) @ rows.values[row] + layer.bias[expert]
        out[row, slot] = np.square(np.maximum(made * shares[row, slot], 0))
    return out.reshape(rows.count, -1)


def gated_loops(layer: Layer, rows: Rows, gate: Gate) -> np.ndarray:
    out, shares = np.empty((rows.count, layer.picks, layer.rows), np.float32), layer.shares(rows.count)
    for row, slot, expert in slots(layer, rows.count):
        both = np.concatenate([true_values(part) @ rows.values[row] for part in layer.of_expert(expert)])
        both = (both + layer.bias[expert]) * shares[row, slot]
        out[row, slot] = gate.apply(both[: layer.rows], both[layer.rows :])
    return out.reshape(rows.count, -1)


def down_loops(layer: Layer, rows: Rows) -> np.ndarray:
    out, shares = np.empty((rows.count, layer.picks, layer.rows), np.float32), layer.shares(rows.count)
    for row, slot, expert in slots(layer, rows.count):
        x = rows.values[row, slot * layer.k : (slot + 1) * layer.k]
        made = true_values(layer.of_expert(expert)[0]) @ x + layer.bias[expert]
        out[row, slot] = made * shares[row, slot]
    return out


def slots(layer: Layer, count: int) -> list[tuple[int, int, int]]:
    return [(row, slot, int(e)) for (row, slot), e in np.ndenumerate(layer.picked(count))]


def slot_rows(layer: Layer, count: int, **options) -> Rows:
    """x of the second product: a slot behind the other, with NaN behind the last."""
    return random_rows(count, layer.picks * layer.k, **options)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("count", "max_rows"), [(1, 1), (19, 25)])
def test_gated_equals_loops(form: str, count: int, max_rows: int) -> None:
    x = random_rows(count, GATED.k, max_rows=max_rows)
    found = run_experts_gated(FORMS[form](GATED.parts), GATED, x, gate=LIMITS)
    assert_near(found, gated_loops(GATED, x, LIMITS))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("count", "max_rows"), [(1, 1), (19, 25)])
def test_down_equals_loops(form: str, count: int, max_rows: int) -> None:
    x = slot_rows(DOWN, count, max_rows=max_rows)
    assert_near(run_experts_linear(FORMS[form](DOWN.parts), DOWN, x), down_loops(DOWN, x))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("count", "max_rows"), [(1, 1), (19, 25)])
def test_squared_equals_loops(form: str, count: int, max_rows: int) -> None:
    x = random_rows(count, DOWN.k, max_rows=max_rows)
    found = run_experts_squared(FORMS[form](DOWN.parts), DOWN, x)
    assert 0 < (found == 0).sum() < found.size
    assert_near(found, squared_loops(DOWN, x))


def test_squared_is_the_same_in_any_company_and_config() -> None:
    x = random_rows(19, LARGE_DOWN.k, max_rows=33, seed=5)
    whole = run_experts_squared(plain_matrix(LARGE_DOWN.parts), LARGE_DOWN, x)
    for config in CONFIGS.values():
        found = run_experts_squared(plain_matrix(LARGE_DOWN.parts), LARGE_DOWN, x, config)
        np.testing.assert_array_equal(found, whole)
    alone = random_rows(1, LARGE_DOWN.k, seed=5)
    found = run_experts_squared(coded_matrix(LARGE_DOWN.parts), LARGE_DOWN, alone)
    np.testing.assert_array_equal(found, whole[:1])


def test_gated_without_bias_and_shares_has_the_bits_of_the_dense_product() -> None:
    layer = replace(LARGE_GATED, has_bias=False, has_shares=False)
    x = random_rows(5, layer.k)
    found = run_experts_gated(coded_matrix(layer.parts), layer, x, gate=GELU_TANH)
    for expert in range(layer.experts):
        dense = run_gated(plain_matrix(layer.of_expert(expert)), x, SMALL, gate=GELU_TANH)
        mine = layer.picked(5)[:, 0] == expert
        np.testing.assert_array_equal(found[mine], dense[mine])


def test_down_without_bias_and_shares_has_the_bits_of_the_dense_product() -> None:
    layer = replace(LARGE_DOWN, has_bias=False, has_shares=False)
    x = slot_rows(layer, 4)
    found = run_experts_linear(coded_matrix(layer.parts), layer, x)
    for row, slot, expert in slots(layer, 4):
        values = x.x[row : row + 1, slot * layer.k : (slot + 1) * layer.k].contiguous()
        dense = run_linear(plain_matrix(layer.of_expert(expert)), Rows(x=values, count=1, k=layer.k), SMALL)
        np.testing.assert_array_equal(found[row, slot], dense[0])


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_same_bits_in_every_config_and_form(config: LinearConfig) -> None:
    gated_x, down_x = random_rows(19, 256, max_rows=33), slot_rows(LARGE_DOWN, 19, max_rows=33)
    gated = run_experts_gated(plain_matrix(LARGE_GATED.parts), LARGE_GATED, gated_x)
    down = run_experts_linear(plain_matrix(LARGE_DOWN.parts), LARGE_DOWN, down_x)
    for form in (plain_matrix, coded_matrix):
        some = config if form is plain_matrix else replace(config, features=64, k_tile=128)
        found = run_experts_gated(form(LARGE_GATED.parts), LARGE_GATED, gated_x, some)
        np.testing.assert_array_equal(found, gated)
        found = run_experts_linear(form(LARGE_DOWN.parts), LARGE_DOWN, down_x, some)
        np.testing.assert_array_equal(found, down)


def test_float32() -> None:
    config = replace(SMALL, k_tile=32, stages=2)
    gated_x = random_rows(3, GATED.k, dtype=torch.float32)
    matrix = uncoded_matrix([true_values(part) for part in GATED.parts])
    assert_near(run_experts_gated(matrix, GATED, gated_x, config), gated_loops(GATED, gated_x, SILU))
    down_x = slot_rows(DOWN, 3, dtype=torch.float32)
    matrix = uncoded_matrix([true_values(part) for part in DOWN.parts])
    assert_near(run_experts_linear(matrix, DOWN, down_x, config), down_loops(DOWN, down_x))


def test_a_row_is_the_same_in_any_company() -> None:
    matrix, down = coded_matrix(LARGE_GATED.parts), coded_matrix(LARGE_DOWN.parts)
    alone = run_experts_gated(matrix, LARGE_GATED, random_rows(1, 256, seed=5))
    alone_down = run_experts_linear(down, LARGE_DOWN, slot_rows(LARGE_DOWN, 1, seed=5))
    for count, max_rows in ((2, 2), (17, 40)):
        x = random_rows(count, 256, max_rows=max_rows, seed=5)
        np.testing.assert_array_equal(run_experts_gated(matrix, LARGE_GATED, x)[:1], alone)
        x = slot_rows(LARGE_DOWN, count, max_rows=max_rows, seed=5)
        np.testing.assert_array_equal(run_experts_linear(down, LARGE_DOWN, x)[:1], alone_down)


def test_an_empty_step_writes_nothing() -> None:
    x = random_rows(0, GATED.k, max_rows=4)
    assert run_experts_gated(plain_matrix(GATED.parts), GATED, x).size == 0
    assert run_experts_linear(plain_matrix(DOWN.parts), DOWN, slot_rows(DOWN, 0, max_rows=4)).size == 0


@pytest.mark.parametrize("form", MXFP4_AND_Q4_K, ids=str)
def test_quantised_experts_are_those_of_the_bf16_matrices(form: Form) -> None:
    for layer, run in ((LARGE_GATED, run_experts_gated), (LARGE_DOWN, run_experts_linear)):
        if form.units and layer.k % 256:
            continue
        x = random_rows(3, layer.k * (1 if layer.gated else layer.picks))
        parts = [random_part(form, layer.rows, layer.k, seed=i) for i in range(len(layer.parts))]
        wanted = run(plain_matrix([part.bits for part in parts]), layer, x)
        np.testing.assert_array_equal(run(quantised_matrix(parts), layer, x), wanted)
