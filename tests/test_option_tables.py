"""Tables of options in the docs: made of the fields that declare them, and of nothing else."""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated

import msgspec
import pytest

from firelane.cli import build_parser
from firelane.engine_config import ENGINE, EngineConfig
from firelane.options import Option, OptionSet, check, fields, read_table
from firelane.server.options.sets import ENGINE_COMMAND, NODE_MODEL, NODE_SERVER, SERVE

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
ROW = re.compile(r"^\| (?P<names>`(?:[^|\\]|\\.)*)\|", re.M)
FLAG, KEY = re.compile(r"(--[a-z][a-z-]+)"), re.compile(r"`([a-z_]+)` \(file\)")


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("option_tables", ROOT / "scripts" / "option_tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_are_those_that_the_script_writes(tables: ModuleType) -> None:
    for page in tables.PAGES:
        text = (DOCS / page).read_text()
        assert tables.with_tables(page, text) == text, "run python scripts/option_tables.py"


def test_the_tables_tell_each_option() -> None:
    text = (DOCS / "serving.md").read_text()
    names = {name for row in ROW.finditer(text) for name in FLAG.findall(row["names"])}
    keys = {key for row in ROW.finditer(text) for key in KEY.findall(row["names"])}
    assert {one.name for one in SERVE.by_key.values()} <= names | keys


@pytest.mark.parametrize("page", sorted(path.name for path in DOCS.glob("*.md")))
def test_each_option_of_a_table_is_declared(page: str) -> None:
    known = {name for name in known_flags() if name.startswith("--")}
    keys = {key for one in (SERVE, ENGINE_COMMAND, NODE_SERVER, NODE_MODEL) for key in one.by_key}
    rows = [row["names"] for row in ROW.finditer((DOCS / page).read_text())]
    flags = {name for row in rows if row.startswith("`--") for name in FLAG.findall(row)}
    assert sorted(flags - known) == []
    assert sorted({key for row in rows for key in KEY.findall(row)} - keys) == []


def known_flags() -> set[str]:
    found: set[str] = set()
    parsers: list[argparse.ArgumentParser] = [build_parser()]
    while parsers:
        for action in parsers.pop()._actions:
            found |= set(action.option_strings)
            below = action.choices.values() if isinstance(action.choices, dict) else ()
            parsers += [one for one in below if isinstance(one, argparse.ArgumentParser)]
    return found


def test_the_example_of_the_docs_works_as_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The field of docs/adding-an-option.md, in a config of its own."""
    text = (DOCS / "adding-an-option.md").read_text()
    (code,) = re.findall(r"( {8}idle_memory_s: .*?= 60\.0)\n", text, re.S)
    module = ModuleType("example_of_the_docs")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    names = vars(module)
    names |= {"Annotated": Annotated, "Option": Option, "ENGINE": ENGINE, "EngineConfig": EngineConfig}
    lines = "\n".join(line.removeprefix("    ") for line in code.splitlines())
    exec(f"class Example(EngineConfig, frozen=True, kw_only=True):\n{lines}\n", names)
    example: type = names["Example"]  # pyright: ignore
    options = OptionSet((example,), (ENGINE,))
    found = read_table(options, {"idle_memory_s": 5}, tmp_path, lambda key, told: ValueError(key + told))
    config = example(model_dir=tmp_path, cache_dir=tmp_path, **fields(example, found))
    assert config.idle_memory_s == 5.0
    assert options.by_key["idle_memory_s"].option.file
    with pytest.raises(ValueError, match="idle_memory_s0 is not a number above 0"):
        read_table(options, {"idle_memory_s": 0}, tmp_path, lambda key, told: ValueError(key + told))
    check(config)
    assert msgspec.structs.replace(config, threads=2).idle_memory_s == 5.0
