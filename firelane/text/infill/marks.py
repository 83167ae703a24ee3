"""Marks of models that fill in the middle of a text: special tokens before what stands before the gap, before
what stands behind it, and before the answer. They are found in the vocabulary alone.

Bavarian et al., Efficient training of language models to fill in the middle (arXiv 2207.14255).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from firelane.text.tokens.tokenizer import Tokenizer

SPACE = "\u2581"
"""SentencePiece's stand-in for a space."""


@dataclass(frozen=True, kw_only=True)
class MarkNames:
    """Names of one family's marks. middle: "" where the answer follows what stands before the gap.
    suffix_first: whether what stands behind the gap comes first. repo, file: before a repository's name, and
    before each file's. ends: further tokens that end an answer.
    """

    prefix: str
    suffix: str
    middle: str = ""
    suffix_first: bool = False
    repo: str = ""
    file: str = ""
    ends: tuple[str, ...] = ()

    @property
    def needed(self) -> list[str]:
        return [name for name in (self.prefix, self.suffix, self.middle) if name]


FAMILIES = (
    MarkNames(  # Qwen2.5-Coder, Qwen3-Coder; CodeGemma and Granite 4 have the first three
        prefix="<|fim_prefix|>",
        suffix="<|fim_suffix|>",
        middle="<|fim_middle|>",
        repo="<|repo_name|>",
        file="<|file_sep|>",
        ends=("<|fim_pad|>", "<|endoftext|>", "<|file_separator|>", "<|filename|>", "<|reponame|>"),
    ),
    MarkNames(  # DeepSeek-Coder, DeepSeek V2 and V3
        prefix="<｜fim▁begin｜>",
        suffix="<｜fim▁hole｜>",
        middle="<｜fim▁end｜>",
        ends=("<｜end▁of▁sentence｜>", "<|EOT|>"),
    ),
    MarkNames(  # StarCoder2
        prefix="<fim_prefix>",
        suffix="<fim_suffix>",
        middle="<fim_middle>",
        repo="<repo_name>",
        file="<file_sep>",
        ends=("<fim_pad>", "<|endoftext|>", "<filename>", "<reponame>"),
    ),
    MarkNames(  # SantaCoder
        prefix="<fim-prefix>",
        suffix="<fim-suffix>",
        middle="<fim-middle>",
        ends=("<fim-pad>", "<|endoftext|>"),
    ),
    MarkNames(  # GLM 4.5
        prefix="<|code_prefix|>",
        suffix="<|code_suffix|>",
        middle="<|code_middle|>",
        ends=("<|endoftext|>",),
    ),
    MarkNames(  # CodeLlama
        prefix=f"{SPACE}<PRE>",
        suffix=f"{SPACE}<SUF>",
        middle=f"{SPACE}<MID>",
        ends=(f"{SPACE}<EOT>",),
    ),
    MarkNames(prefix="<PRE>", suffix="<SUF>", middle="<MID>", ends=("<EOT>",)),
    MarkNames(prefix="[PREFIX]", suffix="[SUFFIX]", suffix_first=True, ends=("[MIDDLE]",)),  # Codestral
)


@dataclass(frozen=True, kw_only=True)
class InfillMarks:
    """Token ids of a model's marks. middle: None where the answer follows what stands before the gap. repo,
    file: None where there is no such mark. ends: tokens that end an answer, the marks themselves among them.
    """

    prefix: int
    suffix: int
    middle: int | None
    suffix_first: bool
    repo: int | None
    file: int | None
    ends: frozenset[int]

    @property
    def count(self) -> int:
        """Number of marks in a prompt without further files."""
        return 2 if self.middle is None else 3


def find_marks(tokenizer: Tokenizer, told: Mapping[str, str]) -> InfillMarks | None:
    """The marks of a vocabulary; None where it has none. told: names of marks, by the fields of MarkNames and
    "pad", that the model's file says itself: they come first."""
    for names in _told_names(told):
        if all(tokenizer.id_of(name) is not None for name in names.needed):
            return _marks(tokenizer.id_of, names)

    def added(name: str) -> int | None:
        return tokenizer.id_of(name) if tokenizer.is_added(name) else None

    for names in FAMILIES:
        if all(map(tokenizer.is_added, names.needed)):
            return _marks(added, names)
    return None


def _told_names(told: Mapping[str, str]) -> Iterable[MarkNames]:
    """With what the family of the same mark has besides."""
    prefix, suffix, middle = (told.get(part, "") for part in ("prefix", "suffix", "middle"))
    if not prefix or not suffix:
        return
    family = next((one for one in FAMILIES if one.prefix == prefix), None)
    if not middle and (family is None or family.middle):
        return
    yield MarkNames(
        prefix=prefix,
        suffix=suffix,
        middle="" if family is not None and not family.middle else middle,
        suffix_first=family is not None and family.suffix_first,
        repo=told.get("repo", family.repo if family else ""),
        file=told.get("file", family.file if family else ""),
        ends=(told.get("pad", ""), *(family.ends if family else ())),
    )


def _marks(id_of: Callable[[str], int | None], names: MarkNames) -> InfillMarks:
    def known(name: str) -> int | None:
        return id_of(name) if name else None

    prefix, suffix = known(names.prefix), known(names.suffix)
    assert prefix is not None
    assert suffix is not None
    middle, repo, file = known(names.middle), known(names.repo), known(names.file)
    ends = {prefix, suffix, middle, repo, file, *map(known, names.ends)}
    return InfillMarks(
        prefix=prefix,
        suffix=suffix,
        middle=middle,
        suffix_first=names.suffix_first,
        repo=repo,
        file=file,
        ends=frozenset(token for token in ends if token is not None),
    )
