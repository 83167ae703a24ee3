"""C++ expressions of the operands of kernels."""

from __future__ import annotations

from firelane.backends.cpu.codegen.layout import Layout
from firelane.program.values import DType, Rows, Value, Weight

ELEMENTS = {DType.F32: "float", DType.BF16: "Bf16::act", DType.I32: "std::int32_t"}


def tag(dtype: DType) -> str:
    return "Bf16" if dtype is DType.BF16 else "F32"


def rows(value: Value) -> str:
    return "outputs" if value.rows is Rows.OUTPUT else "tokens"


def at(value: Value, layout: Layout) -> str:
    return f"c.at<{ELEMENTS[value.dtype]}>({layout.value_index[value]})"


def at_or_null(value: Value | None, layout: Layout) -> str:
    return "nullptr" if value is None else at(value, layout)


def vector(weight: Weight | None, layout: Layout) -> str:
    return "nullptr" if weight is None else f"c.weight<float>({layout.weight_index[weight]})"


def flag(value: object) -> str:
    return truth(value is not None)


def truth(value: object) -> str:
    return "true" if value else "false"


def number(value: float) -> str:
    return f"float({value!r})"
