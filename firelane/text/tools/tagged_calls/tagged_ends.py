"""Ends of values that stand between tags: their own closing tag, or, where a model forgets that, the tag that
closes the call or begins the next parameter. Such tags may also be a part of the value, as in a file
that is about such calls: what stands behind and around them tells.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from firelane.text.tools.parameters import Schema, names_of
from firelane.text.tools.stream_buffer import Reading, StreamBuffer, begins, char, match, skip_space
from firelane.text.tools.tagged_calls.tags import Tags


@dataclass(slots=True)
class PartialCall:
    """A call that is being read. schema: of its arguments. section_close: the closing tag of its section.
    written: names of the parameters that have come.
    """

    schema: Schema
    section_close: str
    written: set[str] = field(default_factory=set[str])


class ValueEnds:
    """Finds ends in the text of one format's values. seconds: second characters of the tags that end one."""

    def __init__(self, tags: Tags) -> None:
        self._tags = tags
        self._own = (tags.value_close, f"{tags.value_close[:-1]}/>")
        self.seconds = frozenset({"/", tags.key[1]})
        self._key = tags.key_pattern
        self._no_key = tags.no_key_pattern
        self._openings = (*tags.sections, tags.call) if tags.call else tags.sections

    def own(self, buffer: StreamBuffer, at: int) -> Reading[int]:
        """The size of the value's closing tag `at` places ahead; 0 where there is none."""
        for tag in self._own:
            if (yield from begins(buffer, at, tag)):
                return len(tag)
        return 0

    def other(self, buffer: StreamBuffer, at: int, call: PartialCall, *, begun: bool) -> Reading[bool]:
        """Whether another tag ends the value there. begun: the value is not empty."""
        tags = self._tags
        for tag in dict.fromkeys((tags.call_close, call.section_close)):
            if tag and (yield from begins(buffer, at, tag)):
                is_last = tag == (call.section_close or tags.call_close)
                return (yield from self._is_over(buffer, at + len(tag), call, is_last=is_last))
        if not begun or not (yield from begins(buffer, at, tags.key)):
            return False
        key = yield from match(buffer, self._key, at, self._no_key)
        return key is not None and key[1] in names_of(call.schema) - call.written

    def _is_over(self, buffer: StreamBuffer, at: int, call: PartialCall, *, is_last: bool) -> Reading[bool]:
        """Whether a call, or its section, is over: the text ends, or more of its tags follow. is_last: the
        section's tag has come; without it, an end may be that of a part of the value.
        """
        at = yield from skip_space(buffer, at)
        if not (yield from char(buffer, at)):
            return is_last
        for tag in (self._tags.call_close, call.section_close, *self._openings):
            if tag and (yield from begins(buffer, at, tag)):
                return True
        return False
