"""Prompts that ask a model for what stands in the gap of a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from firelane.text.infill.marks import InfillMarks
from firelane.text.infill.plain_text import PlainTextEncoder
from firelane.text.tokens.tokenizer import MAX_TEXT_BYTES, TextRoom, Tokenizer

REPO_NAME = "myproject\n"
OPEN_FILE = "filename\n"
"""Names of the repository and of the file with the gap, which clients do not tell. The documentation of
llama-server shows the same ones."""
LEAST_OF_FILE = 32
"""Tokens of a file at least that is cut; of less nothing is kept."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TextWithGap:
    """prefix, suffix: what stands before and behind the gap. begun: what of the answer is there already.
    files: names and texts of further files, the most useful last.
    """

    prefix: str
    suffix: str
    begun: str = ""
    files: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class InfillPrompt:
    """ids: the prompt. is_cut: some of the text has been left out."""

    ids: list[int]
    is_cut: bool


class Infiller:
    """Makes the prompts of one model that has marks."""

    def __init__(self, tokenizer: Tokenizer, marks: InfillMarks) -> None:
        self.marks = marks
        self._texts = PlainTextEncoder(tokenizer, marks)
        self._opening = _opening(tokenizer)

    async def prompt(self, text: TextWithGap, room: TextRoom, *, special: bool) -> list[int]:
        """The whole text. special: with what the tokenizer puts before a text, such as BOS. Raises
        ContextLengthError, and RequestError."""
        prefix = await self._texts.encode(text.prefix, room, begins=True)
        suffix = await self._texts.encode(text.suffix, room)
        opening = self._opening if special else []
        return [*opening, *self._around(prefix, suffix)]

    async def fitted(self, text: TextWithGap, room: TextRoom, most: int) -> InfillPrompt:
        """A prompt of at most `most` tokens. What is behind the gap keeps its beginning: a quarter of the
        room, and more where there is less before the gap, which keeps its end. Files have what is left, the
        last ones first: of the one that does not fit its end is kept. Raises RequestError.
        """
        most = min(most, room.max_tokens)
        ends, begins = replace(room, keep=most), replace(room, keep=most, from_start=True)
        before = await self._texts.encode(text.prefix[-MAX_TEXT_BYTES:], ends, begins=True)
        before += await self._texts.encode(text.begun[-MAX_TEXT_BYTES:], ends, begins=not before)
        behind = await self._texts.encode(text.suffix[:MAX_TEXT_BYTES], begins)
        left = max(1, most - len(self._opening) - self.marks.count)
        suffix = behind[: max(left // 4, left - len(before))]
        prefix = before[-(left - len(suffix)) :] if left > len(suffix) else []
        left -= len(prefix) + len(suffix)
        files, files_cut = await self._files(text.files, ends, left)
        is_cut = files_cut or len(prefix) < len(before) or len(suffix) < len(behind)
        return InfillPrompt([*self._opening, *files, *self._around(prefix, suffix)], is_cut)

    def _around(self, prefix: list[int], suffix: list[int]) -> list[int]:
        marks = self.marks
        before, behind = [marks.prefix, *prefix], [marks.suffix, *suffix]
        middle = [] if marks.middle is None else [marks.middle]
        return [*behind, *before, *middle] if marks.suffix_first else [*before, *behind, *middle]

    async def _files(
        self, files: Sequence[tuple[str, str]], room: TextRoom, left: int
    ) -> tuple[list[int], bool]:
        """Token ids of files, and whether some of them is left out."""
        if not files:
            return [], False
        first, last = await self._file_marks(room)
        left -= len(first) + len(last)
        kept: list[list[int]] = []
        whole = True
        for name, text in reversed(files):
            head = await self._file_head(name, room)
            ids = await self._texts.encode(text[-MAX_TEXT_BYTES:], room)
            take = min(len(ids), left - len(head))
            whole = take == len(ids)
            if whole or take >= LEAST_OF_FILE:
                kept.append([*head, *ids[len(ids) - take :]])
                left -= len(kept[-1])
            if not whole:
                break
        if not kept:
            return [], True
        return [*first, *(token for one in reversed(kept) for token in one), *last], not whole

    async def _file_marks(self, room: TextRoom) -> tuple[list[int], list[int]]:
        """The tokens before all files, and those before the file with the gap."""
        if self.marks.repo is None or self.marks.file is None:
            return [], await self._texts.encode("\n", room)
        first = [self.marks.repo, *await self._texts.encode(REPO_NAME, room)]
        return first, [self.marks.file, *await self._texts.encode(OPEN_FILE, room)]

    async def _file_head(self, name: str, room: TextRoom) -> list[int]:
        if self.marks.repo is None or self.marks.file is None:
            return await self._texts.encode(f"\n--- {name} ---\n", room)
        return [self.marks.file, *await self._texts.encode(f"{name}\n", room)]


def _opening(tokenizer: Tokenizer) -> list[int]:
    """Tokens that the tokenizer puts before a text."""
    text = tokenizer.encode("a", add_special_tokens=False)
    whole = tokenizer.encode("a")
    for begin in range(len(whole) - len(text) + 1):
        if whole[begin : begin + len(text)] == text:
            return whole[:begin]
    return []
