"""The plan of a quantised checkpoint: which matrices become codes, and what each of its files holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from firelane.errors import UsageError
from firelane.program.ops import Embed
from firelane.program.program import Program
from firelane.program.recipes import Piece
from firelane.program.values import DType, Weight
from firelane.weights.checkpoints.checkpoint import Checkpoint
from firelane.weights.quantizing.parts import QuantizedPart, parts_of
from firelane.weights.quantizing.schemes import Scheme
from firelane.weights.quantizing.targets import find_targets
from firelane.weights.storage.files import SINGLE

HEAD = "lm_head"


@dataclass(frozen=True)
class Matrix:
    """A matrix that becomes codes: rows from `first` on of a weight. module: its name without `.weight`."""

    module: str
    weight: Weight
    first: int
    shape: tuple[int, int]
    parts: Mapping[str, QuantizedPart]


@dataclass(frozen=True)
class KeptTensor:
    """A tensor that stays as it is, or rounded to bf16. stored: the name that it is published by."""

    name: str
    stored: str
    dtype: str
    shape: tuple[int, ...]
    why: str = ""


@dataclass(frozen=True)
class Plan:
    """files: of the new checkpoint, what they hold in the order of the old ones. config: what config.json
    says of the codes."""

    scheme: Scheme
    files: Mapping[str, Sequence[Matrix | KeptTensor]]
    config: Mapping[str, Any]

    @property
    def matrices(self) -> Iterator[Matrix]:
        return (entry for file in self.files.values() for entry in file if isinstance(entry, Matrix))

    @property
    def kept(self) -> Iterator[KeptTensor]:
        return (entry for file in self.files.values() for entry in file if isinstance(entry, KeptTensor))


def make_plan(
    program: Program, fitted: Program, checkpoint: Checkpoint, scheme: Scheme, keep: Sequence[str]
) -> Plan:
    """program: with all recipes; fitted: with those of the checkpoint. keep: patterns of modules that stay as
    they are. Raises UsageError for a pattern that matches none, or where nothing is left to be quantised."""
    planner = _Planner(program, fitted, checkpoint, scheme, keep)
    files: dict[str, list[Matrix | KeptTensor]] = {}
    paths = checkpoint.contents()
    for number, (path, names) in enumerate(paths.items(), start=1):
        new = _file_name(path, number, len(paths))
        files[new] = [entry for name in names for entry in planner.entries(name)]
    planner.check_patterns()
    plan = Plan(scheme, files, {})
    if not any(True for _ in plan.matrices):
        raise UsageError(f"{checkpoint.directory}: no matrix is left that {scheme.name} can hold")
    return Plan(scheme, files, scheme.config(*planner.names(plan)))


@dataclass
class _Planner:
    program: Program
    fitted: Program
    checkpoint: Checkpoint
    scheme: Scheme
    keep: Sequence[str]
    matched: set[str] = field(default_factory=lambda: {HEAD})

    def __post_init__(self) -> None:
        found = find_targets(self.fitted)
        self.targets = {*found.tensors, *found.transposed}
        self.tables = {n for op in self.fitted.ops if isinstance(op, Embed) for n in op.table.tensors}
        self.weight_of = {piece.tensor: w for w in self.fitted.weights for piece in w.pieces}
        self.recipes_of = {w.name: (w.pieces, *w.others) for w in self.program.weights}

    def entries(self, name: str) -> Iterator[Matrix | KeptTensor]:
        """Matrices of a tensor, or the reason for which it is kept."""
        shape = self.checkpoint.shape(name) or ()
        why = self._why_kept(name, shape)
        stored = self.checkpoint.published(name)
        if why or name not in self.targets:
            yield KeptTensor(name, stored, self.checkpoint.dtype(name), shape, why)
        elif len(shape) == 2:
            weight = Weight.stored(name, shape, DType.BF16)
            yield self._matrix(stored, weight, 0, (shape[0], shape[1]))
        else:
            yield from self._split(name, stored)

    def _why_kept(self, name: str, shape: tuple[int, ...]) -> str:
        """In words, "" where a matrix of a product is not kept."""
        modules = {_module(name), _module(self.checkpoint.published(name))}
        matching = [pattern for pattern in self.keep if any(_matches(m, pattern) for m in modules)]
        self.matched.update(matching)
        if name not in self.targets:
            return ""
        if matching:
            return f"--keep {matching[0]}"
        if not self.scheme.fits(self._inputs(name, shape)):
            return f"{self._inputs(name, shape)} inputs are no multiple of {self.scheme.group}"
        return ""

    def _inputs(self, name: str, shape: tuple[int, ...]) -> int:
        return shape[-1] if len(shape) == 2 else self.weight_of[name].k

    def _split(self, name: str, stored: str) -> Iterator[Matrix]:
        """Experts that are one tensor, under the names that they have one by one."""
        weight = self.weight_of[name]
        recipe = next(r for r in self.recipes_of[weight.name] if _is_one_by_one(r))
        prefix = stored.removesuffix(name.removeprefix("model."))
        first = 0
        for piece in recipe:
            n, k = piece.shape
            yield self._matrix(prefix + piece.tensor.removeprefix("model."), weight, first, (n, k))
            first += n

    def _matrix(self, stored: str, weight: Weight, first: int, shape: tuple[int, int]) -> Matrix:
        return Matrix(_module(stored), weight, first, shape, parts_of(self.scheme, *shape))

    def check_patterns(self) -> None:
        for pattern in self.keep:
            if pattern not in self.matched:
                raise UsageError(f"--keep {pattern}: matches no module of the model; leave it out")

    def names(self, plan: Plan) -> tuple[list[str], list[str]]:
        """Modules that the config targets, and those of them that it ignores."""
        kept = [e for e in plan.kept if e.name not in self.tables and self._is_module(e)]
        heads = [m.module for m in plan.matrices if m.module.rpartition(".")[2] == HEAD]
        ignored = [_module(e.stored) for e in kept] + ([] if heads else [HEAD])
        return ["Linear", *heads], list(dict.fromkeys(ignored))

    def _is_module(self, kept: KeptTensor) -> bool:
        return (len(kept.shape) == 2 and kept.stored.endswith(".weight")) or kept.name in self.targets


def _is_one_by_one(recipe: Sequence[Piece]) -> bool:
    return all(len(piece.shape) == 2 and piece.is_as_stored for piece in recipe)


def _module(tensor: str) -> str:
    return tensor.removesuffix(".weight")


def _matches(module: str, pattern: str) -> bool:
    """Whether the whole name matches, or what stands behind one of its dots."""
    return fnmatchcase(module, pattern) or fnmatchcase(module, f"*.{pattern}")


def _file_name(path: Path, number: int, count: int) -> str:
    if path.suffix == ".safetensors":
        return path.name
    return SINGLE if count == 1 else f"model-{number:05}-of-{count:05}.safetensors"


def tensors_of(entry: Matrix | KeptTensor) -> Iterator[tuple[str, QuantizedPart]]:
    """The tensors of a file that an entry becomes, by name."""
    if isinstance(entry, KeptTensor):
        yield entry.stored, QuantizedPart(entry.dtype, entry.shape)
        return
    for part, info in entry.parts.items():
        yield f"{entry.module}.{part}", info
