"""Layouts: how many ranks share a model, and what of it each has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from firelane.errors import UsageError
from firelane.parallel.shares import spreads
from firelane.program.program import Program


@dataclass(frozen=True, kw_only=True, order=True)
class ParallelLayout:
    """tp ranks share each product, pp stages the layers, dp groups the sequences; experts are spread over ep
    ranks: the tp of a group, or all tp * dp of a stage."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1

    @property
    def devices(self) -> int:
        return self.tp * self.pp * self.dp

    def __str__(self) -> str:
        names = [f"{name} {getattr(self, name)}" for name in ("tp", "pp", "dp", "ep")]
        return ", ".join(name for name in names if not name.endswith(" 1")) or "one device"

    @property
    def options(self) -> list[str]:
        """Options of `firelane serve` for this layout: ranks that share products share experts, too. Groups
        of one rank each that share experts are the ranks of an engine that divide the rows of attention;
        wider ones would be other engines."""
        given = [f"--tensor-parallel-size {self.tp}"] * (self.tp > 1)
        given += [f"--pipeline-parallel-size {self.pp}"] * (self.pp > 1)
        if self.dp > 1 and self.ep > self.tp == 1:
            return [*given, f"--expert-parallel-size {self.ep}"]
        if self.dp > 1 and self.ep > self.tp:
            return [*given, f"--data-parallel-size {self.dp}", f"--expert-parallel-size {self.ep}"]
        return given + [f"--replicas {self.dp}"] * (self.dp > 1)


def layouts(program: Program, devices: int, **fixed: Sequence[int] | None) -> list[ParallelLayout]:
    """All that use so many devices, of the sizes that are fixed, if any. Raises UsageError where none is
    left."""
    found = [layout for layout in _every(program, devices) if _is_wanted(layout, fixed)]
    if not found:
        asked = ", ".join(f"--{name} {','.join(map(str, sizes))}" for name, sizes in fixed.items() if sizes)
        raise UsageError(
            f"{asked}: no such layout of {devices} device{'s' * (devices > 1)}: tp x pp x dp is their "
            "number, ep is 1, or tp or tp x dp where there are experts"
        )
    return found


def _every(program: Program, devices: int) -> Iterator[ParallelLayout]:
    experts = any(spreads(op, 2) for op in program.ops)
    for tp in _divisors(devices):
        for pp in _divisors(devices // tp):
            dp = devices // tp // pp
            yield ParallelLayout(tp=tp, pp=pp, dp=dp, ep=tp if experts else 1)
            if experts and dp > 1:
                yield ParallelLayout(tp=tp, pp=pp, dp=dp, ep=tp * dp)


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def _is_wanted(layout: ParallelLayout, fixed: dict[str, Sequence[int] | None]) -> bool:
    return all(getattr(layout, name) in sizes for name, sizes in fixed.items() if sizes)
