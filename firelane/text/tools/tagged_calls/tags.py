"""Tags of the formats that put one around each parameter of a call."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace

DSML = "｜DSML｜"
OPEN, CLOSE = "<|open|>", "<|close|>"
"""Kimi K3 begins its tags with these, and ends them with <|sep|>."""
NUMBER = "NUMBER"


@dataclass(frozen=True, kw_only=True, slots=True)
class Tags:
    """One way of writing such calls. sections: marks before calls, the first of them is the one that is
    forced; each ends with its closing tag; none: each call stands by itself. before: what is written before
    a section. raw: marks around a value that holds marks. call, call_end, call_close: around a call's name
    and after its parameters; call "": a section is one call, and its closing tag the call's; NUMBER in
    call_end stands for the call's place in its section, from 1. key, key_end, value_close: around a
    parameter's name and after its value. typed: the attribute behind the name that says what the value is:
    "string" (true or false), "type" (the name of its JSON type), "" for none. whole: marks around arguments
    that are one JSON object. lines: a value stands on lines of its own. many: several calls share a section.
    gap: white space between tags. delimiters, around, content_mark: as in Family.
    """

    sections: tuple[str, ...]
    call: str
    call_end: str = ""
    call_close: str = ""
    key: str
    key_end: str
    value_close: str
    typed: str = ""
    lines: bool = False
    many: bool = False
    raw: tuple[str, str] = ("", "")
    gap: str = "\n"
    before: str = ""
    whole: tuple[str, str] = ("", "")
    delimiters: tuple[str, ...]
    around: tuple[str, ...] = ()
    content_mark: str = ""

    @property
    def opening(self) -> str:
        """The mark that calls begin with."""
        return self.sections[0] if self.sections else self.call

    @property
    def call_pattern(self) -> re.Pattern[str]:
        """A call up to behind its name, which is the first group."""
        follow = f"{re.escape(self.key)}|{re.escape(closing(self.opening))}"
        end = re.escape(self.call_end).replace(NUMBER, r"\d+") if self.call else f"(?={follow})"
        return re.compile(rf'{re.escape(self.call)}\s*([^\s<>"={{}}]+)\s*{end}')

    @property
    def key_pattern(self) -> re.Pattern[str]:
        """A parameter up to its value. Groups: its name, and `typed`."""
        end = r"\s*".join(map(re.escape, self.key_end.split("\n")))
        typed = rf'(?:\s+{self.typed}="(?P<typed>\w+)")?' if self.typed else "(?P<typed>(?!))?"
        at = len('"') if self.typed else 0
        return re.compile(rf'{re.escape(self.key)}([^<>"\n]+){end[:at]}{typed}\s*{end[at:]}')

    @property
    def no_key_pattern(self) -> re.Pattern[str]:
        """The pattern that is found where a parameter's tag is over."""
        return re.compile(re.escape(self.key_end.rpartition("<")[2]))

    def key_mark(self, name: str, kind: str) -> str:
        """A parameter up to its value, as it is forced. kind: the JSON type of that."""
        end = self.key_end
        if self.typed:
            kind = "number" if kind == "integer" else kind
            said = kind if self.typed == "type" else json.dumps(kind == "string")
            end = f'" {self.typed}="{said}{end}'
        return f"{self.key}{name}{end}"


def closing(tag: str) -> str:
    return f"</{tag[1:]}" if OPEN not in tag else tag.replace(OPEN, CLOSE)


def _hy3(end: str) -> Tags:
    """end: what each name of a tag ends with."""
    calls, call, separator = f"<tool_calls{end}>", f"<tool_call{end}>", f"<tool_sep{end}>"
    key, value = f"<arg_key{end}>", f"<arg_value{end}>"
    return Tags(
        sections=(calls,),
        call=call,
        call_end=separator,
        call_close=closing(call),
        key=key,
        key_end=f"{closing(key)}\n{value}",
        value_close=closing(value),
        many=True,
        delimiters=(
            *(calls, closing(calls), call, closing(call), separator),
            *(key, closing(key), value, closing(value)),
        ),
    )


HY3, HY3_PREVIEW = _hy3(":opensource"), _hy3("")
MINICPM5 = Tags(
    sections=(),
    call='<function name="',
    call_end='">',
    call_close="</function>",
    key='<param name="',
    key_end='">',
    value_close="</param>",
    gap="",
    raw=("<![CDATA[", "]]>"),
    delimiters=("<function", "</function>", "<param", "</param>"),
)
QWEN3_CODER = Tags(
    sections=("<tool_call>",),
    call="<function=",
    call_end=">",
    call_close="</function>",
    key="<parameter=",
    key_end=">",
    value_close="</parameter>",
    lines=True,
    delimiters=("<tool_call>", "</tool_call>"),
)
SEED_OSS = replace(
    QWEN3_CODER,
    sections=("<seed:tool_call>",),
    lines=False,
    delimiters=("<seed:tool_call>", "</seed:tool_call>"),
)
MINIMAX_M2 = Tags(
    sections=("<minimax:tool_call>",),
    call='<invoke name="',
    call_end='">',
    call_close="</invoke>",
    key='<parameter name="',
    key_end='">',
    value_close="</parameter>",
    many=True,
    delimiters=("<minimax:tool_call>", "</minimax:tool_call>"),
)
DEEPSEEK_V32 = Tags(
    sections=(f"<{DSML}function_calls>", f"<{DSML}tool_calls>"),
    call=f'<{DSML}invoke name="',
    call_end='">',
    call_close=f"</{DSML}invoke>",
    key=f'<{DSML}parameter name="',
    key_end='">',
    value_close=f"</{DSML}parameter>",
    typed="string",
    many=True,
    delimiters=(DSML,),
)
DEEPSEEK_V4 = replace(DEEPSEEK_V32, sections=DEEPSEEK_V32.sections[::-1])
KIMI_K3 = Tags(
    sections=(f"{OPEN}tools<|sep|>",),
    call=f'{OPEN}call tool="',
    call_end=f'" index="{NUMBER}"<|sep|>',
    call_close=f"{CLOSE}call<|sep|>",
    key=f'{OPEN}argument key="',
    key_end='"<|sep|>',
    value_close=f"{CLOSE}argument<|sep|>",
    typed="type",
    many=True,
    gap="",
    before=f"{OPEN}response<|sep|>{CLOSE}response<|sep|>",
    whole=(f'{OPEN}json type="object"<|sep|>', f"{CLOSE}json<|sep|>"),
    delimiters=(OPEN, CLOSE, "<|sep|>"),
    around=(f"{OPEN}response<|sep|>", f"{CLOSE}response<|sep|>", f"{CLOSE}message<|sep|>"),
    content_mark=f"{OPEN}response<|sep|>",
)
ATEM = Tags(
    sections=("<atem:function_calls>",),
    call='<atem:invoke name="',
    call_end='">',
    call_close="</atem:invoke>",
    key='<atem:parameter name="',
    key_end='">',
    value_close="</atem:parameter>",
    many=True,
    delimiters=("<atem:function_calls>", "</atem:function_calls>"),
)
"""Tags of Muse Glimmer."""
GLM45 = Tags(
    sections=("<tool_call>",),
    call="",
    key="<arg_key>",
    key_end="</arg_key>\n<arg_value>",
    value_close="</arg_value>",
    delimiters=(*("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),),
)
GLM47 = replace(GLM45, key_end="</arg_key><arg_value>", gap="")
