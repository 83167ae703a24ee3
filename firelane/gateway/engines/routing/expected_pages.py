"""Pages that one engine is going to have, of prompts that it was sent and has not computed yet."""

from __future__ import annotations

from collections.abc import Container

from firelane.wire.page_names import PageNames

MOST_KEPT_PAGES = 2048
"""Pages of prompts that are kept to name their pages later: 2 MB of tokens for each engine."""


Names = PageNames | tuple[int, ...]
"""Names of full pages; those of a prompt are hashed when they are asked for."""


class _Prompt:
    """Pages that one prompt will leave. named: those in the record, the first one first. pages[next:end]:
    those behind them, without a name yet."""

    __slots__ = ("end", "named", "next", "pages")

    def __init__(self, pages: Names, first: int, end: int) -> None:
        self.named: dict[int, None] = {}
        self.pages, self.next, self.end = pages, first, end

    @property
    def last(self) -> int | None:
        """The deepest page that has a name."""
        return next(reversed(self.named), None)


class ExpectedPages:
    """Prompts in the order of their use, the least recently used first; the last page of a prompt is the
    first that is forgotten. Pages are named one by one, when an engine or another prompt has come to the one
    before: most prompts are computed before anybody asks, and until then nobody needs their names."""

    __slots__ = ("_kept_pages", "_num_pages", "_open", "_prompts", "_told", "_unnamed", "_where")

    def __init__(self, told: Container[int]) -> None:
        """told: pages that the engine has, which are not expected."""
        self._told = told
        self._where: dict[int, _Prompt] = {}
        self._prompts: dict[_Prompt, None] = {}
        self._unnamed: dict[_Prompt, None] = {}
        self._open: dict[_Prompt, None] = {}
        self._num_pages = self._kept_pages = 0

    def __len__(self) -> int:
        """Pages, with and without a name."""
        return self._num_pages

    @property
    def named(self) -> Container[int]:
        """Pages with a name."""
        return self._where

    @property
    def names(self) -> list[int]:
        return list(self._where)

    def goes_on_behind(self, name: int) -> bool:
        """Pages without a name follow this one."""
        prompt = self._where.get(name)
        return prompt is not None and prompt.next < prompt.end and prompt.last == name

    def add(self, pages: Names, first: int, end: int) -> list[int]:
        """Expect pages of a prompt, all named at once: those that are expected already are used now. Returns
        those that were not."""
        prompt, new = _Prompt((), 0, 0), list[int]()
        for name in [pages[i] for i in range(first, end)]:
            if name in self._where:
                new += self._name_rest(self._where[name])
                self._leave(name)
                self._num_pages -= 1
            elif name not in self._told:
                new.append(name)
            else:
                continue
            self._join(name, prompt)
        self._num_pages += len(prompt.named)
        if prompt.named:
            self._prompts[prompt] = None
        return new

    def add_later(self, pages: Names, first: int, end: int) -> int:
        """Expect pages of a prompt, of which `first` is neither expected nor told; returns the name of it."""
        prompt, name = _Prompt(pages, first + 1, end), pages[first]
        self._join(name, prompt)
        self._num_pages += end - first
        self._prompts[prompt] = None
        if first + 1 < end:
            self._unnamed[prompt] = None
            self._kept_pages += len(pages)
        return name

    def name_along(self, name: int, pages: Names, index: int) -> list[int]:
        """Name the pages behind the one at this index, of this name, as far as they are those of another
        prompt; returns them."""
        prompt, new = self._where.get(name), list[int]()
        if prompt is None or prompt.last != name:
            return new
        for i in range(index + 1, len(pages)):
            if prompt.next != i or i >= prompt.end or prompt.pages[i] != pages[i]:
                break
            new += self._name_next(prompt)
        return new

    def name_oldest(self) -> list[int]:
        """Name the pages of the oldest prompts, while too much is kept for it; returns them."""
        new = list[int]()
        while self._kept_pages > MOST_KEPT_PAGES:
            new += self._name_rest(next(iter(self._unnamed)))
        return new

    def remove(self, name: int) -> None:
        """Expect the page, which has a name, no more. `settle` is to follow."""
        prompt = self._where[name]
        if prompt.next < prompt.end and prompt.last == name:
            self._open[prompt] = None
        self._num_pages -= 1
        self._leave(name)

    def settle(self) -> list[int]:
        """After removals: name the first pages of prompts that have lost theirs; returns them."""
        opened, self._open = self._open, {}
        return [name for prompt in opened for name in self._name_next(prompt)]

    def forget_one(self) -> int | None:
        """Forget the last page of the oldest prompt; returns its name if it has one. There is a page."""
        prompt = next(iter(self._prompts))
        while not prompt.named:
            del self._prompts[prompt]
            prompt = next(iter(self._prompts))
        self._num_pages -= 1
        if prompt.next < prompt.end:
            prompt.end -= 1
            self._keep_no_more(prompt)
            return None
        name = next(reversed(prompt.named))
        self._leave(name)
        return name

    def _join(self, name: int, prompt: _Prompt) -> None:
        prompt.named[name] = None
        self._where[name] = prompt

    def _leave(self, name: int) -> None:
        prompt = self._where.pop(name)
        del prompt.named[name]
        if not prompt.named and prompt.next >= prompt.end:
            self._prompts.pop(prompt, None)

    def _name_rest(self, prompt: _Prompt) -> list[int]:
        new = list[int]()
        while prompt.next < prompt.end:
            new += self._name_next(prompt)
        return new

    def _name_next(self, prompt: _Prompt) -> list[int]:
        """Name one more page, if there is one; what is told or expected as another prompt's has its name."""
        told, where, pages = self._told, self._where, prompt.pages
        for i in range(prompt.next, prompt.end):
            name = pages[i]
            if name not in told and name not in where:
                self._move_on(prompt, i)
                prompt.next = i + 1
                self._join(name, prompt)
                self._keep_no_more(prompt)
                return [name]
        self._move_on(prompt, prompt.end)
        self._keep_no_more(prompt)
        return []

    def _move_on(self, prompt: _Prompt, index: int) -> None:
        """The pages before this one are not expected."""
        self._num_pages -= index - prompt.next
        prompt.next = index

    def _keep_no_more(self, prompt: _Prompt) -> None:
        """All its pages have names: the prompt itself is not needed any more."""
        if prompt.next >= prompt.end and prompt in self._unnamed:
            del self._unnamed[prompt]
            self._kept_pages -= len(prompt.pages)
            prompt.pages = ()
            if not prompt.named:
                self._prompts.pop(prompt, None)
