"""The training text: the Python standard library's own source, and chats made from it."""

from __future__ import annotations

import ast
import hashlib
import random
import sysconfig
import textwrap
import warnings
from dataclasses import dataclass
from pathlib import Path

BOS, EOS, PAD, END = "<|bos|>", "<|eos|>", "<|pad|>", "<|end|>"
USER, ASSISTANT, SYSTEM = "<|user|>", "<|assistant|>", "<|system|>"
SPECIAL_TOKENS = (BOS, EOS, PAD, END, USER, ASSISTANT, SYSTEM)
# The tokenizer gives the special tokens the first ids, in this order.
BOS_ID, EOS_ID, PAD_ID, END_ID = range(4)

EXCLUDED_PARTS = frozenset({"site-packages", "dist-packages", "__pycache__", "pydoc_data"})
EXCLUDED_PREFIXES = ("encodings/", "lib2to3/tests/", "test/encoded_modules/", "test/cjkencodings/")
MAX_FILE_BYTES = 260_000
MAX_FUNCTION_CHARS = 1_600
VALIDATION_PERCENT = 4

SYSTEM_PROMPT = "You write short, plain Python."
REQUESTS = (
    "Write a Python {kind} `{signature}`{about}",
    "Write the {kind} `{signature}`{about}",
    "Implement `{signature}`{about}",
)


@dataclass(frozen=True, slots=True)
class Document:
    """One source file, with its path below the standard library."""

    path: str
    text: str

    @property
    def is_test(self) -> bool:
        return "test" in Path(self.path).parts[0] or "/test" in self.path


@dataclass(frozen=True, slots=True)
class Corpus:
    """All documents, split by file into training and validation."""

    train: tuple[Document, ...]
    validation: tuple[Document, ...]

    @property
    def total_bytes(self) -> int:
        return sum(len(d.text.encode()) for d in self.train + self.validation)


def load_corpus(seed: int) -> Corpus:
    """Read the standard library of the running interpreter and split it by file."""
    root = Path(sysconfig.get_path("stdlib"))
    documents = [d for path in sorted(root.rglob("*.py")) if (d := _read(path, root))]
    train = tuple(d for d in documents if not _held_out(d.path, seed))
    validation = tuple(d for d in documents if _held_out(d.path, seed))
    return Corpus(train=train, validation=validation)


def chats(documents: tuple[Document, ...], seed: int) -> list[str]:
    """One chat for each function of some substance: a request for it, its source, the end."""
    rng = random.Random(seed)
    found: list[str] = []
    for document in documents:
        for node in _functions(document):
            source = _function_source(document.text, node)
            if source is not None:
                found.append(_chat(node, source, rng))
    rng.shuffle(found)
    return found


def turn(role: str, content: str) -> str:
    """One message in the form that the chat template gives it."""
    return f"{role}\n{content}{END}\n"


def _read(path: Path, root: Path) -> Document | None:
    """The file as a document, or None where it is excluded, too large, or not UTF-8."""
    name = path.relative_to(root).as_posix()
    if EXCLUDED_PARTS & set(path.relative_to(root).parts) or name.startswith(EXCLUDED_PREFIXES):
        return None
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        return None
    text = text.replace("\r\n", "\n")
    if not 0 < len(text) <= MAX_FILE_BYTES or any(token in text for token in SPECIAL_TOKENS):
        return None
    return Document(path=name, text=text)


def _held_out(name: str, seed: int) -> bool:
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return int.from_bytes(digest[:4], "big") % 100 < VALIDATION_PERCENT


def _functions(document: Document) -> list[ast.FunctionDef]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(document.text)
    except (SyntaxError, ValueError):
        return []
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    if document.is_test:
        return [node for node in functions if ast.get_docstring(node)]
    return functions


def _function_source(text: str, node: ast.FunctionDef) -> str | None:
    """The function's lines without their common indent, where it is neither trivial nor long."""
    lines = text.splitlines()[node.lineno - 1 : node.end_lineno]
    source = textwrap.dedent("\n".join(lines))
    if len(lines) < 3 or len(source) > MAX_FUNCTION_CHARS or not source.startswith("def "):
        return None
    return source


def _chat(node: ast.FunctionDef, source: str, rng: random.Random) -> str:
    """A request and its answer; at times a system message before, and a second turn after."""
    summary = _summary(node)
    arguments = ast.unparse(node.args)
    kind = "method" if arguments.split(",")[0] in ("self", "cls") else "function"
    request = rng.choice(REQUESTS).format(
        kind=kind,
        signature=f"{node.name}({arguments})",
        about=f": {summary}" if summary else ".",
    )
    parts = [turn(SYSTEM, SYSTEM_PROMPT)] if rng.random() < 0.2 else []
    parts += [turn(USER, request), turn(ASSISTANT, source)]
    if summary and rng.random() < 0.25:
        parts += [turn(USER, "What does it do?"), turn(ASSISTANT, summary)]
    return "".join(parts)


def _summary(node: ast.FunctionDef) -> str:
    docstring = (ast.get_docstring(node) or "").strip()
    return " ".join(docstring.split("\n\n")[0].split())[:200]
