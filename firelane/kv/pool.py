"""Blocks of the KV cache: reference counts, names, and the order in which they are given out again.

Each block is in exactly one place:

    blank   nobody uses it, it holds nothing worth keeping       given out first
    cached  nobody uses it, but a later prompt may ask for it    given out last, the least recently used first
    in use  reference count > 0, named or not

Every operation is O(1) a block.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class BlockPool:
    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._references = [0] * num_blocks
        self._name_of: list[bytes | None] = [None] * num_blocks
        self._by_name: dict[bytes, int] = {}
        self._blank = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def num_free(self) -> int:
        """Blocks that `take` can give out now."""
        return len(self._blank) + len(self._cached)

    def take(self) -> int:
        """A block for one user, its old content forgotten. IndexError where none is free: ask `num_free`
        before."""
        if self._blank:
            block = self._blank.pop()
        elif self._cached:
            block, _ = self._cached.popitem(last=False)
            self._forget(block)
        else:
            raise IndexError("no free block")
        self._references[block] = 1
        return block

    def find(self, names: Sequence[bytes], limit: int) -> list[int]:
        """Blocks that hold the longest known prefix of names[:limit]. They are not yet held: see `share`."""
        found: list[int] = []
        for index in range(min(limit, len(names))):
            block = self._by_name.get(names[index])
            if block is None:
                break
            found.append(block)
        return found

    def num_idle(self, blocks: Sequence[int]) -> int:
        """How many of these blocks nobody uses, so that sharing them makes `num_free` smaller."""
        return sum(1 for block in blocks if self._references[block] == 0)

    def share(self, blocks: Sequence[int]) -> None:
        """One more user for each of these named blocks."""
        for block in blocks:
            if self._references[block] == 0:
                del self._cached[block]
            self._references[block] += 1

    def publish(self, block: int, name: bytes) -> None:
        """Let others find this block in use by its name. A second block of the same content stays unnamed."""
        if name not in self._by_name and self._name_of[block] is None:
            self._by_name[name] = block
            self._name_of[block] = name

    def release(self, blocks: Sequence[int]) -> None:
        """One user fewer for each. Later blocks become older: a prefix without its tail is still of use."""
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                if self._name_of[block] is None:
                    self._blank.append(block)
                else:
                    self._cached[block] = None

    def references(self, block: int) -> int:
        return self._references[block]

    def check_integrity(self) -> None:
        """Raise AssertionError unless every block is in exactly one place and names are one to one."""
        blank, cached = set(self._blank), set(self._cached)
        assert len(blank) == len(self._blank), "a block is blank twice"
        assert not blank & cached, "a block is blank and cached"
        for block in range(self.num_blocks):
            free = block in blank or block in cached
            assert self._references[block] >= 0, f"block {block}: negative reference count"
            assert free == (self._references[block] == 0), f"block {block}: free and in use, or lost"
            assert block not in blank or self._name_of[block] is None, f"block {block}: blank but named"
            assert block not in cached or self._name_of[block] is not None, f"block {block}: cached, no name"
        named = {name: block for block, name in enumerate(self._name_of) if name is not None}
        assert named == self._by_name, "names and blocks differ"

    def _forget(self, block: int) -> None:
        name = self._name_of[block]
        assert name is not None
        del self._by_name[name]
        self._name_of[block] = None
