"""Names of a prompt's pages, by which gateway and engines speak of what a prefix cache has."""

from __future__ import annotations

from xxhash import xxh3_64_intdigest

PAGE_TOKENS = 256
"""Coarser than engines' blocks: less to hash and to remember, and what is missed is less than a page."""
PAGES_AT_ONCE = 16
"""Pages that are hashed together: fewer calls, for some names that nobody asks for."""


def page_names(salt: bytes, prompt: bytes, page_tokens: int = PAGE_TOKENS) -> list[int]:
    """Names of the full pages of a prompt (int32 ids): 64 bits, each for all tokens up to its end, equal in
    all processes. They are no secure hash, so that whoever knows the salt can make two prompts of one name:
    good enough for an estimate, and no key to a page."""
    return more_page_names([], salt, prompt, page_tokens)


def more_page_names(
    names: list[int], salt: bytes, prompt: bytes | memoryview, page_tokens: int = PAGE_TOKENS
) -> list[int]:
    """The list of the first pages' names, continued in place by those of the other full pages of a prompt."""
    name = names[-1] if names else xxh3_64_intdigest(salt)
    step, tokens = 4 * page_tokens, memoryview(prompt).cast("B")
    for end in range((len(names) + 1) * step, len(tokens) + 1, step):
        name = xxh3_64_intdigest(tokens[end - step : end], name)
        names.append(name)
    return names


class PageNames:
    """The names of page_names, hashed as far as they are asked for: a page's name needs those before it, and
    whoever looks for the longest cached beginning needs few behind its end. Keeps the prompt."""

    __slots__ = ("_length", "_names", "_prompt", "_salt")

    def __init__(self, salt: bytes, prompt: bytes) -> None:
        self._salt, self._prompt = salt, memoryview(prompt)
        self._names: list[int] = []
        self._length = len(prompt) // (4 * PAGE_TOKENS)

    def __len__(self) -> int:
        """Full pages of the prompt."""
        return self._length

    def __getitem__(self, index: int, /) -> int:
        """index: from 0. Raises IndexError beyond the last page."""
        names = self._names
        if index >= len(names):
            more_page_names(names, self._salt, self._prompt[: 4 * PAGE_TOKENS * (index + PAGES_AT_ONCE)])
        return names[index]
