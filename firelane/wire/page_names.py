"""Names of a prompt's pages, by which gateway and engines speak of what a prefix cache has."""

from __future__ import annotations

from xxhash import xxh3_64_intdigest

PAGE_TOKENS = 256
"""Coarser than engines' blocks: less to hash and to remember, and what is missed is less than a page."""


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
