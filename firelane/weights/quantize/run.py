"""quantize: a model directory to one whose matrices are codes, in the format of compressed-tensors."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, cast

import msgspec

from firelane.errors import CheckpointError, UsageError
from firelane.program.program import Program
from firelane.storage import read_regular
from firelane.weights.checkpoints.checkpoint import Checkpoint
from firelane.weights.checkpoints.fitting import fitted
from firelane.weights.checkpoints.head import shared_table
from firelane.weights.lossless.manifest import MANIFEST
from firelane.weights.lossless.marks import BLOCK, CONFIG
from firelane.weights.lossless.output import OutputDirectory
from firelane.weights.lossless.pack import OTHER_WEIGHTS
from firelane.weights.progress import Progress, silent
from firelane.weights.quantize.plan import KeptTensor, Matrix, Plan, make_plan, tensors_of
from firelane.weights.quantize.report import NAME, FileReport, QuantizeReport, overall_error
from firelane.weights.quantize.writer import FileQuantizer, make_header
from firelane.weights.quantizing.schemes import KEY, Scheme
from firelane.weights.storage.files import GGUF_INDEX, INDEX
from firelane.weights.storage.safetensors import ITEM_BYTES

MARKER = "firelane_quantize.unfinished"
NOT_CARRIED = (CONFIG, INDEX, MANIFEST, GGUF_INDEX, NAME)
TIED = "tie_word_embeddings"
MAX_BYTES = 256 << 20


def quantize(
    program: Program,
    model_dir: Path,
    out: Path,
    scheme: Scheme,
    *,
    keep: Sequence[str] = (),
    threads: int = 2,
    progress: Progress = silent,
) -> QuantizeReport:
    """Write `out`, a directory that is new, empty, or was left unfinished by the same call. program: of the
    model in `model_dir`, with matrices in bf16.

    Raises UsageError for a model that is quantised already and for senseless patterns, CheckpointError for a
    damaged model, OutputError when `out` is not usable or the disk is full.
    """
    if out.resolve() == model_dir.resolve():
        raise UsageError(f"{out}: is the model itself; give another directory")
    checkpoint = Checkpoint.open(model_dir)
    if checkpoint.is_quantized:
        raise UsageError(f"{model_dir}: is quantised already; give the model that it was made from")
    as_stored = fitted(program, checkpoint, rounds=True)
    plan = make_plan(program, as_stored, checkpoint, scheme, keep)
    checkpoint.read_as_stored(tensor for m in plan.matrices for tensor in m.weight.tensors)
    config = _config(model_dir, plan.config, is_tied=_is_tied(as_stored))
    task = {
        "quantize": scheme.name,
        "of": checkpoint.fingerprint,
        "plan": hashlib.sha256(config).hexdigest(),
    }
    with OutputDirectory(out, marker=MARKER, task=task, is_whole=lambda: False) as directory:
        report = _QuantizeRun(checkpoint, plan, directory, threads, progress).files()
        for path in _carried(model_dir):
            directory.write(path.name, read_regular(path, MAX_BYTES))
        if len(plan.files) > 1 or (model_dir / INDEX).is_file():
            directory.write(INDEX, _index(plan))
        directory.write(CONFIG, config)
    return report


class _QuantizeRun:
    """One call of quantize: its files, one after the other."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        plan: Plan,
        directory: OutputDirectory,
        threads: int,
        progress: Progress,
    ) -> None:
        self._checkpoint, self._plan, self._directory = checkpoint, plan, directory
        self._threads, self._progress = threads, progress
        self._total = sum(_numbers(entries) for entries in plan.files.values())
        self._done = 0
        self._reports: dict[str, FileReport] = {}

    def files(self) -> QuantizeReport:
        before = _read_report(self._directory.path)
        quantizer = FileQuantizer(self._checkpoint, self._plan.scheme, self._advance())
        for name, entries in self._plan.files.items():
            finished = before.get(name)
            if finished is None or not self._is_finished(name, entries):
                with self._directory.writing(name) as file:
                    finished = quantizer.write(entries, file, threads=self._threads)
            else:
                self._done += _numbers(entries)
            self._reports[name] = finished
            self._directory.write(NAME, self._report().encode())
        return self._report()

    def _is_finished(self, name: str, entries: Sequence[Matrix | KeptTensor]) -> bool:
        """Whether a run before has written this file. A file under its name is whole."""
        header, path = make_header(entries), self._directory.path / name
        with contextlib.suppress(OSError), path.open("rb") as file:
            return path.stat().st_size == header.nbytes and file.read(len(header.data)) == header.data
        return False

    def _report(self) -> QuantizeReport:
        matrices = [m for file in self._reports.values() for m in file.matrices]
        return QuantizeReport(
            format=self._plan.scheme.name,
            files=dict(self._reports),
            original_bytes=self._checkpoint.nbytes,
            relative_error=overall_error(matrices),
        )

    def _advance(self) -> Callable[[int], None]:
        def on_numbers(count: int) -> None:
            self._done += count
            self._progress("quantize", self._done, self._total, "weights")

        return on_numbers


def _numbers(entries: Sequence[Matrix | KeptTensor]) -> int:
    return sum(prod(entry.shape) for entry in entries)


def _read_report(directory: Path) -> Mapping[str, FileReport]:
    """Files that a run before has finished."""
    try:
        return msgspec.json.decode(read_regular(directory / NAME, MAX_BYTES), type=QuantizeReport).files
    except (OSError, msgspec.DecodeError):
        return {}


def _is_tied(program: Program) -> bool:
    """Whether the embedding table is the head, and does not only stand in for one that is missing."""
    return shared_table(program) is not None and program.can_generate


def _config(model_dir: Path, quantization: Mapping[str, Any], *, is_tied: bool) -> bytes:
    """config.json of the new directory: matrices are in bf16 beside the codes. is_tied: whether the head is
    the embedding table."""
    try:
        found = cast(dict[str, Any], json.loads(read_regular(model_dir / CONFIG)))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{model_dir / CONFIG}: cannot be read: {error}") from error
    found.pop(BLOCK, None)
    for section in (found, found.get("text_config")):
        if isinstance(section, dict):
            section |= {key: "bfloat16" for key in ("dtype", "torch_dtype") if key in section}
            section |= {TIED: is_tied} if TIED in section else {}
    return json.dumps({**found, KEY: quantization}, indent=2).encode() + b"\n"


def _index(plan: Plan) -> bytes:
    weight_map: dict[str, str] = {}
    total = 0
    for file, entries in plan.files.items():
        for name, part in (tensor for entry in entries for tensor in tensors_of(entry)):
            weight_map[name] = file
            total += prod(part.shape) * ITEM_BYTES[part.dtype]
    content = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    return json.dumps(content, indent=2).encode() + b"\n"


def _carried(model_dir: Path) -> list[Path]:
    """Files beside the weights: tokenizer, templates, licence."""
    return [
        path
        for path in sorted(model_dir.iterdir())
        if path.is_file()
        and path.name not in NOT_CARRIED
        and path.suffix not in OTHER_WEIGHTS
        and path.name[0] != "."
    ]
