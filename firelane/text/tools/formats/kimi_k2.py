"""Kimi K2: calls have ids of the model's own, `functions.NAME:NUMBER`, which its template wants back as they
were.
"""

from __future__ import annotations

import re

from firelane.text.tools.json_calls.marked import Marked, Marks

SECTION = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")
CALL = ("<|tool_call_begin|>", "<|tool_call_end|>")
ARGUMENTS = "<|tool_call_argument_begin|>"
_HEAD = re.compile(
    rf"\s*(?P<id>(?:functions\.)?(?P<name>[^\s<>{{}}:]+):[0-9]+)\s*{re.escape(ARGUMENTS)}\s*(?=\{{)"
)


def kimi_k2() -> Marked:
    marks = Marks(
        section=SECTION,
        call=CALL,
        head=_HEAD,
        before_name="functions.",
        number=":[0-9]{1,4}",
        before_arguments=ARGUMENTS,
        more=(ARGUMENTS,),
    )
    return Marked("kimi_k2", marks)
