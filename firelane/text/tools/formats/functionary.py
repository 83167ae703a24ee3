"""Functionary v3.1 and Kanana 1.5, as Llama 3.1 is told of functions of a user's own:
<function=f>{...}</function>.
"""

from __future__ import annotations

import re

from firelane.text.tools.json_calls.marked import Marked, Marks

CALL = ("<function=", "</function>")
_HEAD = re.compile(r"(?P<name>[^\s<>{}]+)>\s*(?P<id>(?!))?(?=\{)")


def functionary_v31() -> Marked:
    return Marked("functionary_v31", Marks(section=("", ""), call=CALL, head=_HEAD, before_arguments=">"))
