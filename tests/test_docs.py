"""The pages speak of what exists: paths, names, options, links; what they tell the reader to run, runs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from firelane import env
from firelane.bench.server import ServerProcess
from firelane.cli import build_parser

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PATH = re.compile(r"`((?:firelane|docs|tests|scripts|benchmarks|tools)/[\w./-]+)`")
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")
FILE = re.compile(r"`([\w-]+\.(?:py|cpp|h|js|css|svg))`")
MODULE = re.compile(r"python -m (firelane(?:\.[a-z_]+)*)")
FILES_OF_OTHERS = {"llama.cpp", "numpy.py"}
TOPS = ("firelane", "tests", "benchmarks", "scripts")
FILES = {p.name for top in TOPS for p in (ROOT / top).rglob("*.*")} | FILES_OF_OTHERS
# A type, or a function called in the text, that some file of the package must define.
SYMBOL = re.compile(r"`([A-Z][a-z]\w+)(?:\.(\w+))?`")
NAMES_OF_OTHERS = (
    *("BertModel", "ForCausalLM", "ForCausalLMEagle3", "ForConditionalGeneration"),
    *("RobertaModel", "XLMRobertaModel", "ForSequenceClassification"),
)
"""Names of architectures end in one of these."""
COMPOSERS = {"bench", "cli", "doctor", "llm", "plan", "server"}
"""Packages that compose the others."""
OPTION = re.compile(r"`(--[a-z-]+)")
BLOCK = re.compile(r"<!-- (run|output): (\w+) -->\n```\w+\n(.*?)```", re.DOTALL)
SOURCES = "\n".join(p.read_text() for p in sorted((ROOT / "firelane").rglob("*.py")))


def ids(pages: list[Path]) -> list[str]:
    return [str(p.relative_to(ROOT)) for p in pages]


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_paths_and_links_exist(page: Path) -> None:
    text = page.read_text()
    missing = [p for p in PATH.findall(text) if not (ROOT / p).exists()]
    missing += [t for t in LINK.findall(text) if "://" not in t and not (page.parent / t).exists()]
    missing += [name for name in FILE.findall(text) if name not in FILES]
    missing += [module for module in MODULE.findall(text) if not module_exists(module)]
    assert missing == []


def module_exists(name: str) -> bool:
    path = ROOT / name.replace(".", "/")
    return (path / "__main__.py").exists() or path.with_suffix(".py").exists()


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_parts_of_pages_that_are_linked_exist(page: Path) -> None:
    missing = []
    for target, part in re.findall(r"\]\(([\w./-]*)#([\w-]+)\)", page.read_text()):
        linked = page.parent / target if target else page
        headings = re.findall(r"^#+ (.+)$", linked.read_text(), re.MULTILINE)
        if part not in {anchor(heading) for heading in headings}:
            missing.append(f"{target}#{part}")
    assert missing == []


def anchor(heading: str) -> str:
    """A heading's name in links, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def map_rows(heading: str) -> list[list[str]]:
    """The rows below a table's first line: its cells, with code marks."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    table = text[text.index(f"| {heading} |") :].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def codes(cell: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", cell))


def importers() -> dict[str, set[str]]:
    """For each package the others that import it."""
    found: dict[str, set[str]] = {}
    for file in (ROOT / "firelane").glob("*/**/*.py"):
        own = file.relative_to(ROOT / "firelane").parts[0]
        for name in re.findall(r"^\s*(?:from|import) firelane\.(\w+)", file.read_text(), re.MULTILINE):
            found.setdefault(name, set()).add(own)
    return {name: users - {name} for name, users in found.items()}


def test_map_has_every_package_and_who_imports_it() -> None:
    entries = [*(ROOT / "firelane").glob("*/__init__.py"), *(ROOT / "firelane").glob("[a-z]*.py")]
    names = {entry.parent.name if entry.stem == "__init__" else entry.stem for entry in entries}
    rows = {codes(row[0]).pop(): row[2] for row in map_rows("package")}
    assert set(rows) == names
    used = importers()
    for name, cell in rows.items():
        if cell != "all":
            hidden = set[str]() if name in COMPOSERS else COMPOSERS
            assert used.get(name, set()) - hidden <= codes(cell), name


def _place(name: str) -> Path:
    path = ROOT / "firelane" / name
    return path if path.exists() else path.with_suffix(".py")


def test_places_of_the_map_exist() -> None:
    rows = [*map_rows("package"), *map_rows("room")]
    places = [place for row in rows for cell in (row[0], row[-1]) for place in codes(cell)]
    missing = [place for place in places if not _place(place).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_types_are_defined(page: Path) -> None:
    for name, member in SYMBOL.findall(page.read_text()):
        if name.endswith(NAMES_OF_OTHERS):
            continue
        assert re.search(rf"^class {name}\b", SOURCES, re.MULTILINE), f"{page.name} names {name}"
        assert not member or re.search(rf"^    def {member}\b", SOURCES, re.MULTILINE), f"{name}.{member}"


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_named_symbol_stands_in_the_file_named_with_it(page: Path) -> None:
    """`Name` (`path`) means that the path defines the name."""
    for name, path in re.findall(r"`(\w+)`\s+\(`(firelane/[\w./]+\.py)`\)", page.read_text()):
        assert re.search(rf"^(class|def) {name}\b", (ROOT / path).read_text(), re.MULTILINE), (
            f"{name} in {path}"
        )


def test_serving_page_has_every_option_and_variable() -> None:
    text = (ROOT / "docs" / "serving.md").read_text()
    subs = next(a for a in build_parser()._actions if a.choices)
    assert isinstance(subs.choices, dict)
    known = {s for a in subs.choices["serve"]._actions for s in a.option_strings if s.startswith("--")}
    assert set(OPTION.findall(text)) == known
    assert set(re.findall(r"`(FIRELANE_[A-Z_]+)`", text)) == {env.PREFIX + name for name in env.KNOWN}


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess() as started:
        yield started


def test_endpoints_and_metrics_exist(server: ServerProcess) -> None:
    text = (ROOT / "docs" / "serving.md").read_text()
    for method, path in re.findall(r"`?(GET|POST) (/[\w/]+)`", text):
        assert httpx.request(method, server.url + path, timeout=600).status_code != 404, path
    metrics = httpx.get(f"{server.url}/metrics", timeout=600).text
    missing = [m for m in re.findall(r"`((?:vllm|firelane):\w+)`", text) if m not in metrics]
    assert missing == []


def blocks(page: Path) -> dict[tuple[str, str], str]:
    return {(kind, name): body for kind, name, body in BLOCK.findall(page.read_text())}


RUN = [(page, name) for page in PAGES for kind, name in blocks(page) if kind == "run"]


@pytest.mark.parametrize(("page", "name"), RUN, ids=[name for _, name in RUN])
def test_examples_run(server: ServerProcess, page: Path, name: str) -> None:
    marked = blocks(page)
    if "curl" in marked["run", name] and shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    body = marked["run", name].replace("http://127.0.0.1:8000", server.url)
    if "import" in body:
        command = [sys.executable, "-W", "error", "-c", body]
    else:
        command = ["bash", "-c", body.replace("firelane generate", f"{sys.executable} -m firelane generate")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) > 20
    if ("output", name) in marked:
        text = json.loads(done.stdout)["choices"][0]["text"]
        assert text.strip() == marked["output", name].strip()


def test_examples_of_readme_are_run() -> None:
    assert {name for page, name in RUN if page == PAGES[0]} == {"completion", "client"}


def test_node_of_the_page_has_its_models(tmp_path: Path) -> None:
    """Its file is taken as it is, but for the backend, and for the time that a model stays at least."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    text = (ROOT / "docs" / "node.md").read_text()
    marked = dict(re.findall(r"<!-- node: (\w+) -->\n```\w*\n(.*?)```", text, re.DOTALL))
    config = tmp_path / "node.toml"
    file = marked["file"].replace("[node]", "[node]\nmin_residence_s = 0")
    config.write_text(file.replace("[engine]", '[engine]\nbackend = "null"'))
    with ServerProcess([str(config)], command="node") as node:
        ask = marked["ask"].replace("http://127.0.0.1:8000", node.url)
        ask = ask.replace("firelane ps", f"{sys.executable} -m firelane ps --url {node.url}")
        done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count('"text":') == 3
    shown, got = (_states(table) for table in (marked["states"], done.stdout[done.stdout.index("MODEL") :]))
    assert shown == got


def _states(table: str) -> list[tuple[str, str]]:
    """Names and states of `firelane ps`."""
    rows = [re.split(r"\s{2,}", line) for line in table.strip().splitlines()[1:-1]]
    return [(row[0], row[1]) for row in rows]


def test_model_example_is_the_file() -> None:
    block = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "adding-a-model.md").read_text(), re.DOTALL)
    assert block is not None
    assert block[1].strip() in (ROOT / "firelane/models/families/mistral/mistral.py").read_text()


def test_ci_runs_the_readme_commands() -> None:
    readme, ci = (ROOT / "README.md").read_text(), (ROOT / ".ci" / "run").read_text()
    assert "pip install . && firelane serve" in readme
    assert "pip install '.[test]' && python -m pytest -q" in readme
    assert "pip install -q ." in ci
    assert "firelane serve" in ci
    assert "python -m pytest -q" in ci
