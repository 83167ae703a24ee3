"""From config.json to a Program: the architecture's name leads to the family's file.

A family is a module with a function `program`. Its ARCHITECTURES are names in config.json, written as one
tuple of strings, so that a family is found without importing the others. Where the language model of an
architecture may be one of several, `Mistral3ForConditionalGeneration:ministral3` is that of a text_config of
this model_type.
"""

from __future__ import annotations

import importlib
import logging
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import firelane.models.families
from firelane.errors import UnsupportedModelError
from firelane.models.config.composite import language_model
from firelane.models.config.computed import check_computed
from firelane.models.config.reader import ConfigReader
from firelane.models.heads.draft_head import DraftHead
from firelane.program.program import Program
from firelane.program.values import DType

DECLARED = re.compile(r"^ARCHITECTURES = \(([^)]*)\)", re.MULTILINE)
log = logging.getLogger(__name__)
NAME = re.compile(r'"([^"]+)"')


def load_program(
    config: Mapping[str, Any], *, max_model_len: int | None = None, dtype: DType | None = None
) -> Program:
    """The Program of the model that `config` (the content of config.json) describes; of a multimodal one that
    of its language model. max_model_len: of the longest sequence to be served, dtype: of matrices and
    activations, None: the model's own.

    Raises UnsupportedModelError, naming the architecture or the key, for what is known to change the result
    and would not be computed as the checkpoint asks. Keys that are not known are named in `unknown_keys`.
    """
    reader, names, outside = _reader(config, max_model_len, dtype)
    program = _module(names).program(reader)
    left_out = (*program.left_out, *_predictor_layers(reader))
    check_computed(reader, program)
    reader.finish()
    return replace(program, left_out=left_out, unknown_keys=(*outside, *reader.unknown))


def load_predictor(
    config: Mapping[str, Any], *, max_model_len: int | None = None, dtype: DType | None = None
) -> DraftHead:
    """The head that drafts with the layers of this model that predict tokens, which its program does without.
    The arguments as of load_program(). Raises UnsupportedModelError where the family or the checkpoint has
    none."""
    reader, names, _ = _reader(config, max_model_len, dtype)
    module = _module(names)
    if not hasattr(module, "predictor"):
        raise UnsupportedModelError(
            f"--speculative mtp: layers that predict tokens are not known of {names[-1]}: leave it out"
        )
    return module.predictor(reader)


def warn_of_unknown_keys(program: Program, model: str) -> None:
    """One line of the log that names the keys of config.json that nobody knows here, if there are any."""
    if program.unknown_keys:
        log.warning(
            "config_keys_unknown model=%s keys=%s: what they ask for is not known here, and is not done",
            *(model, ",".join(program.unknown_keys)),
        )


def architectures() -> list[str]:
    """Names of all supported architectures."""
    return sorted(_modules())


def _architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise UnsupportedModelError(f"config.json: architectures = {names!r}: a list of one name is needed")
    return names[0]


def _reader(
    config: Mapping[str, Any], max_model_len: int | None, dtype: DType | None
) -> tuple[ConfigReader, list[str], tuple[str, ...]]:
    """A reader of the language model's config; names of its architecture, from the one that says the most to
    the one that says the least; and keys outside of it that nobody knows."""
    text, where, outside = language_model(config)
    name = _architecture(config)
    names = [f"{name}:{text.get('model_type')}", name] if text is not config else [name]
    reader = ConfigReader(text, where=where, architecture=name, max_model_len=max_model_len, dtype=dtype)
    return reader, names, outside


def _module(names: list[str]) -> Any:
    """The module of the first family that is known of `names`."""
    modules = _modules()
    for name in names:
        if name in modules:
            return importlib.import_module(modules[name])
    known = ", ".join(sorted(modules))
    raise UnsupportedModelError(
        f"config.json: architecture {names[0]!r} is not supported; supported: {known}"
    )


def _modules() -> dict[str, str]:
    """The module of each architecture. Sources are searched, not imported: a start needs one of them."""
    found: dict[str, str] = {}
    families = Path(firelane.models.families.__path__[0])
    for source in sorted(families.rglob("*.py")):
        declared = DECLARED.search(source.read_text(encoding="utf-8"))
        module = ".".join(
            (firelane.models.families.__name__, *source.relative_to(families).with_suffix("").parts)
        )
        for name in NAME.findall(declared[1]) if declared else ():
            assert name not in found, f"{name} is in {found[name]} and in {module}"
            found[name] = module
    return found


def _predictor_layers(config: ConfigReader) -> tuple[str, ...]:
    """Tensors of layers behind the last one, which propose tokens in training and in drafts."""
    count = config.count("num_nextn_predict_layers", 0)
    if not count or not config.has("num_hidden_layers"):  # families that list their layers name these apart
        return ()
    first = config.integer("num_hidden_layers")
    return tuple(f"model.layers.{first + i}." for i in range(count))
