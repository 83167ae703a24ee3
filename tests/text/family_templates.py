"""Small chat templates that write calls in the way of each family, and read the variables that its templates
read.
"""

from __future__ import annotations


def _template(call: str, *, before: str = "", after: str = "", end: str = "<|assistant|>") -> str:
    """call: one call's form, of `f` (a function)."""
    return (
        "{%- if tools %}<|system|>{{ tools | tojson }}{% endif %}"
        "{%- for m in messages %}<|{{ m.role }}|>"
        "{%- if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
        f"{{%- if m.tool_calls %}}{before}{{% for c in m.tool_calls %}}{{% set f = c.function %}}{call}"
        f"{{% endfor %}}{after}{{% endif %}}"
        f"{{%- endfor %}}{{% if add_generation_prompt %}}{end}{{% endif %}}"
    )


def _values(form: str) -> str:
    """form: one parameter, of `k` and `v`."""
    return f"{{% for k, v in f.arguments.items() %}}{form}{{% endfor %}}"


PLAIN = "{{ v if v is string else v | tojson }}"
XML = (
    "<function={{ f.name }}>\n"
    + _values("<parameter={{ k }}>\n" + PLAIN + "\n</parameter>\n")
    + "</function>\n"
)
INVOKE = '<{0}invoke name="{{{{ f.name }}}}">\n' + "{1}" + "</{0}invoke>\n"
DSML = "｜DSML｜"
DSML_KEY = (
    "<｜DSML｜parameter name=\"{{ k }}\" string=\"{{ 'true' if v is string else 'false' }}\">"
    + PLAIN
    + "</｜DSML｜parameter>\n"
)
GEMMA = (
    '{% macro said(v) %}{% if v is string %}<|"|>{{ v }}<|"|>{% elif v is mapping %}'
    "{ {%- for k, x in v.items() %}{{ ',' if not loop.first }}{{ k }}:{{ said(x) }}{% endfor -%} }"
    "{% elif v is boolean %}{{ 'true' if v else 'false' }}{% elif v is sequence %}"
    "[{% for x in v %}{{ ',' if not loop.first }}{{ said(x) }}{% endfor %}]{% else %}{{ v }}{% endif %}"
    "{% endmacro %}"
)
PYTHON = (
    "{% macro said(v) %}"
    "{{ 'None' if v is none else ('True' if v else 'False') if v is boolean else v | tojson }}"
    "{% endmacro %}"
)
JSON_CALL = '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}'

TEMPLATES = {
    "hermes": _template(f"<tool_call>\n{JSON_CALL}\n</tool_call>"),
    "llama3_json": '{# {"name": ..., "parameters": dictionary} #}'
    + _template('{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}'),
    "mistral": _template("[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}"),
    "deepseek_v3": _template(
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ f.name }}\n```json\n{{ f.arguments | tojson }}\n```"
        "<｜tool▁call▁end｜>",
        before="<｜tool▁calls▁begin｜>",
        after="<｜tool▁calls▁end｜>",
    ),
    "deepseek_v31": _template(
        "<｜tool▁call▁begin｜>{{ f.name }}<｜tool▁sep｜>{{ f.arguments | tojson }}<｜tool▁call▁end｜>",
        before="<｜tool▁calls▁begin｜>",
        after="<｜tool▁calls▁end｜>",
        end="<|assistant|>{{ '<think>' if thinking else '</think>' }}",
    ),
    "deepseek_v32": _template(
        INVOKE.format(DSML, _values(DSML_KEY)),
        before="<｜DSML｜function_calls>\n",
        after="</｜DSML｜function_calls>",
    ),
    "deepseek_v4": _template(
        INVOKE.format(DSML, _values(DSML_KEY)), before="<｜DSML｜tool_calls>\n", after="</｜DSML｜tool_calls>"
    ),
    "kimi_k2": _template(
        "<|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>{{ f.arguments | tojson }}"
        "<|tool_call_end|>",
        before="<|tool_calls_section_begin|>",
        after="<|tool_calls_section_end|>",
    ),
    "qwen3_coder": _template(f"<tool_call>\n{XML}</tool_call>"),
    "seed_oss": _template(
        f"<seed:tool_call>\n{XML}</seed:tool_call>".replace(f">\n{PLAIN}\n<", f">{PLAIN}<")
    ),
    "glm45": _template(
        "<tool_call>{{ f.name }}\n"
        + _values("<arg_key>{{ k }}</arg_key>\n<arg_value>" + PLAIN + "</arg_value>\n")
        + "</tool_call>"
    ),
    "glm47": _template(
        "<tool_call>{{ f.name }}"
        + _values("<arg_key>{{ k }}</arg_key><arg_value>" + PLAIN + "</arg_value>")
        + "</tool_call>"
    ),
    "minimax_m2": _template(
        INVOKE.format("", _values('<parameter name="{{ k }}">' + PLAIN + "</parameter>\n")),
        before="<minimax:tool_call>\n",
        after="</minimax:tool_call>",
    ),
    "gemma4": GEMMA
    + _template("<|tool_call>call:{{ f.name }}{{ said(f.arguments) }}<tool_call|>")
    .replace("<think>", "<|channel>thought\n")
    .replace("</think>", "<channel|>"),
    "llama4_pythonic": PYTHON
    + _template(
        "{{ f.name }}(" + _values("{{ ', ' if not loop.first }}{{ k }}={{ said(v) }}") + ")",
        before="<|python_start|>[",
        after="]<|python_end|>",
    ),
    "lfm2": PYTHON
    + _template(
        "{{ f.name }}(" + _values("{{ ', ' if not loop.first }}{{ k }}={{ said(v) }}") + ")",
        before="<|tool_call_start|>[",
        after="]<|tool_call_end|>",
    ),
    "phi4_mini_json": _template(JSON_CALL, before="functools[", after="]"),
    "granite": _template(JSON_CALL, before="<|tool_call|>[", after="]"),
    "nemotron_json": _template(JSON_CALL, before="<TOOLCALL>[", after="]</TOOLCALL>"),
    "minimax_m1": _template(JSON_CALL + "\n", before="<tool_calls>\n", after="</tool_calls>"),
    "apriel": _template(
        f"{{{{ ', ' if not loop.first }}}}{JSON_CALL}", before="<tool_calls>[", after="]</tool_calls>"
    ),
    "gigachat3": _template(f"<|function_call|>{JSON_CALL}"),
    "apertus": _template(
        "{{ ', ' if not loop.first }}{{ {f.name: f.arguments} | tojson }}",
        before="<|tools_prefix|>[",
        after="]<|tools_suffix|>",
    ),
    "hy3": _template(
        "<tool_call:opensource>{{ f.name }}<tool_sep:opensource>\n"
        + _values(
            "<arg_key:opensource>{{ k }}</arg_key:opensource>\n<arg_value:opensource>"
            + PLAIN
            + "</arg_value:opensource>\n"
        )
        + "</tool_call:opensource>\n",
        before="<tool_calls:opensource>\n",
        after="</tool_calls:opensource>",
    ),
    "minicpm5": _template(
        '<function name="{{ f.name }}">'
        + _values(
            "<param name=\"{{ k }}\">{% if v is string and '<' in v %}<![CDATA[{{ v }}]]>{% else %}"
            + PLAIN
            + "{% endif %}</param>"
        )
        + "</function>\n"
    ),
    "cohere": _template(
        '{{ "," if not loop.first }}\n    {"tool_call_id": "{{ loop.index0 }}", "tool_name": "{{ f.name }}", '
        '"parameters": {{ f.arguments | tojson }}}',
        before="<|START_ACTION|>[",
        after="\n]<|END_ACTION|>",
    ),
    "kimi_k3": _template(
        '<|open|>call tool="{{ f.name }}" index="{{ loop.index }}"<|sep|>'
        + _values(
            '<|open|>argument key="{{ k }}" type="'
            "{{ 'boolean' if v is boolean else 'string' if v is string else 'number' if v is number "
            "else 'object' if v is mapping else 'array' }}\"<|sep|>" + PLAIN + "<|close|>argument<|sep|>"
        )
        + "<|close|>call<|sep|>",
        before="<|open|>response<|sep|><|close|>response<|sep|><|open|>tools<|sep|>",
        after="<|close|>tools<|sep|><|close|>message<|sep|>",
    ),
    "muse_glimmer": _template(
        ' to={{ f.name }}<|message|><atem:function_calls>\n<atem:invoke name="{{ f.name }}">\n'
        + _values('<atem:parameter name="{{ k }}">' + PLAIN + "</atem:parameter>\n")
        + "</atem:invoke>\n</atem:function_calls>{{ '<|eom|><|start|>assistant' if not loop.last }}"
    ),
    "minimax_m3": "{% set ns = ']<]minimax[>[' %}{% macro said(v) %}{% if v is string %}{{ v }}"
    "{% elif v is mapping %}{% for k, x in v.items() %}{{ ns }}<{{ k }}>{{ said(x) }}{{ ns }}</{{ k }}>"
    "{% endfor %}"
    "{% elif v is boolean or v is number %}{{ v | tojson }}"
    "{% else %}{% for x in v %}{{ ns }}<item>{{ said(x) }}{{ ns }}</item>{% endfor %}{% endif %}"
    "{% endmacro %}"
    + _template(
        '{{ ns }}<invoke name="{{ f.name }}">{{ said(f.arguments) }}{{ ns }}</invoke>\n',
        before="{{ ns }}<tool_call>\n",
        after="{{ ns }}</tool_call>",
    ),
    "functionary_v31": _template("<function={{ f.name }}>{{ f.arguments | tojson }}</function>"),
    "olmo3": PYTHON
    + _template(
        "{{ f.name }}(" + _values("{{ ', ' if not loop.first }}{{ k }}={{ said(v) }}") + ")\n",
        before="<function_calls>\n",
        after="</function_calls>",
    ),
}
HARMONY = (
    "{%- if tools %}<|start|>developer<|message|>{{ tools | tojson }}<|end|>{% endif %}"
    "{%- if reasoning_effort %}Reasoning: {{ reasoning_effort }}{% endif %}"
    "{%- for m in messages %}"
    "{%- if m.role == 'assistant' and m.tool_calls %}"
    "{%- if m.content and m.thinking %}{{ raise_exception('content and thinking') }}{% endif %}"
    "{%- if m.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}"
    "{%- set f = m.tool_calls[0].function %}"
    "<|start|>assistant to=functions.{{ f.name }}<|channel|>commentary json<|message|>"
    "{{ f.arguments | tojson }}<|call|>"
    "{%- elif m.role == 'assistant' %}"
    "<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>"
    "{%- elif m.role == 'tool' %}<|start|>functions to=assistant<|message|>{{ m.content }}<|end|>"
    "{%- else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}"
    "{%- endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
