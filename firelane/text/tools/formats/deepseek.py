"""DeepSeek V3 and R1: a call's type, its name, and its arguments in a fenced block; V3.1: the name and the
arguments. Both are read, whichever is forced.
"""

from __future__ import annotations

import re

from firelane.text.tools.json_calls.marked import Marked, Marks

SECTION = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
CALL = ("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>")
PARTED = "<｜tool▁sep｜>"
FENCED = "```json"
_HEAD = re.compile(
    rf"\s*(?:function\s*{PARTED}\s*(?=[^\s{{]))?(?P<name>[^\s<>{{}}`]+)\s*(?:{PARTED})?\s*(?:{FENCED})?\s*"
    r"(?P<id>(?!))?(?=\{)"
)


def deepseek(*, fenced: bool) -> Marked:
    """fenced: as V3 and R1 write calls."""
    if fenced:
        marks = Marks(
            section=SECTION,
            call=CALL,
            head=_HEAD,
            before_name=f"function{PARTED}",
            before_arguments=f"\n{FENCED}\n",
            after_arguments="\n```",
            between="\n",
            more=(PARTED,),
        )
        return Marked("deepseek_v3", marks)
    return Marked(
        "deepseek_v31",
        Marks(section=SECTION, call=CALL, head=_HEAD, before_arguments=PARTED, more=(PARTED,)),
    )
