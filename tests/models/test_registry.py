"""The way from an architecture's name to a family's file."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import firelane.models.families
from firelane.errors import UnsupportedModelError
from firelane.models import registry
from firelane.models.registry import architectures, load_program
from tests.models.families import FAMILIES

FAMILY = '''"""A family."""

from firelane.models.families.meta.llama import program

__all__ = ["program"]
ARCHITECTURES = (
    "FirstForCausalLM",
    "FirstForConditionalGeneration",
    "ShellForConditionalGeneration:first",
)
'''
PRINT_IMPORTED = """
import json, sys
from firelane.models.registry import load_program
load_program(json.loads(sys.argv[1]))
print(*sorted(m.rpartition(".")[2] for m in sys.modules if m.startswith("firelane.models.")))
"""


@pytest.fixture
def family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One more family, of several architectures."""
    (tmp_path / "first.py").write_text(FAMILY)
    monkeypatch.setattr(
        firelane.models.families, "__path__", [str(tmp_path), *firelane.models.families.__path__]
    )
    monkeypatch.setattr(firelane.models.families, "first", None, raising=False)
    monkeypatch.delitem(sys.modules, "firelane.models.families.first", raising=False)


def llama(architecture: str, **change: Any) -> dict[str, Any]:
    return FAMILIES["llama2"]() | {"architectures": [architecture]} | change


def test_all_that_is_declared_is_what_modules_say() -> None:
    """Sources are searched for ARCHITECTURES: in each it has to stand as the search expects it."""
    declared: list[str] = []
    for module in pkgutil.walk_packages(firelane.models.families.__path__, "firelane.models.families."):
        declared += getattr(importlib.import_module(module.name), "ARCHITECTURES", ())
    assert architectures() == sorted(declared)


def test_one_family_is_imported() -> None:
    import json

    text = json.dumps(FAMILIES["qwen2"]())
    run = subprocess.run(
        [sys.executable, "-c", PRINT_IMPORTED, text], capture_output=True, text=True, check=True
    )
    imported = run.stdout.split()
    assert "qwen2" in imported
    assert not {"llama", "mistral", "qwen3"}.intersection(imported)


@pytest.mark.usefixtures("family")
@pytest.mark.parametrize("name", ["FirstForCausalLM", "FirstForConditionalGeneration"])
def test_architectures_of_one_family(name: str) -> None:
    program = load_program(llama(name))
    assert program.name == "llama"


@pytest.mark.usefixtures("family")
def test_a_language_model_in_a_shell_of_several() -> None:
    """The shell's name says nothing of it; the section's model_type does."""
    name = "ShellForConditionalGeneration"
    text = {k: v for k, v in FAMILIES["llama2"]().items() if k != "architectures"}
    shell = {"architectures": [name], "model_type": "shell", "text_config": text | {"model_type": "first"}}
    assert load_program(shell).name == "llama"
    with pytest.raises(
        UnsupportedModelError, match="'ShellForConditionalGeneration:second' is not supported"
    ):
        load_program(shell | {"text_config": text | {"model_type": "second"}})
    with pytest.raises(UnsupportedModelError, match="'ShellForConditionalGeneration' is not supported"):
        load_program(llama(name))


@pytest.mark.usefixtures("family")
def test_a_family_knows_which_architecture_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    module = importlib.import_module("firelane.models.families.first")
    inner = module.program
    monkeypatch.setattr(module, "program", lambda config: seen.append(config.architecture) or inner(config))
    load_program(llama("FirstForConditionalGeneration"))
    assert seen == ["FirstForConditionalGeneration"]


def test_unknown_architectures_are_told_what_there_is() -> None:
    with pytest.raises(
        UnsupportedModelError, match=r"'NewForCausalLM'.*LlamaForCausalLM, .*Qwen3ForCausalLM"
    ):
        load_program(llama("NewForCausalLM", auto_map={"AutoModelForCausalLM": "modeling_new.New"}))


def test_layers_that_predict_further_tokens_are_left_out() -> None:
    program = load_program(llama("LlamaForCausalLM", num_nextn_predict_layers=2))
    assert program.left_out == ("model.layers.2.", "model.layers.3.")
    assert registry.load_program(llama("LlamaForCausalLM")).left_out == ()
