"""A server whose engine follows a script: it calls a tool that reads files, then tells what that gave."""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

import tokenizers
from service import Service

from firelane.gateway.config import GatewayConfig, ModelConfig
from tests.text.toy_model import byte_tokenizer, write_model

SECRET = "mauve-walrus-77"
CONTEXT = 1 << 20
TEMPLATE = (
    "{%- if tools %}<|system|>{{ tools | tojson }}\n{% endif %}"
    "{%- for m in messages %}<|{{ 'user' if m.role == 'tool' else m.role }}|>"
    "{%- if m.role == 'tool' %}RESULT:{% endif %}{{ m.content }}"
    "{%- for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}\n"
    "{%- endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
READERS: dict[str, dict[str, Any]] = {
    "Read": {"file_path": "{path}"},
    "exec_command": {"cmd": "cat {path}"},
    "shell_command": {"command": "cat {path}"},
    "shell": {"command": ["cat", "{path}"]},
    "read_file": {"path": "{path}"},
    "read": {"filePath": "{path}"},
}
"""Tools of clients that read files, with the arguments that each wants."""
WRITER = "write_note"
"""A tool of the session whose first call is cut: it is called until the prompt shows what there was of it."""
NOTE = "A long note. " * 100
EDIT = f"""note.txt
```
<<<<<<< SEARCH
{SECRET}
=======
The note says: {SECRET}
>>>>>>> REPLACE
```
"""
"""For a client whose prompt asks for edits of this form."""
TOLD = re.compile(rf"RESULT:.*?{SECRET}", re.DOTALL)
FOLDER = re.compile(r"(?:working directory: |<cwd>|folder: )(/[^\s<]+)", re.IGNORECASE)


HARMONY = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>")
CHATML = ("<|im_start|>", "<|im_end|>")


class ScriptedServer:
    """template: of a published model whose answers are of `form`, None: a simple one. requests: first line of
    each, for a report.
    """

    def __init__(self, template: Path | None = None, form: str = "hermes") -> None:
        self._template = TEMPLATE if template is None else template.read_text()
        self._form = form

    def __enter__(self) -> ScriptedServer:
        self._folder = tempfile.TemporaryDirectory()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._core = byte_tokenizer()
        specials = {"harmony": HARMONY, "qwen3-coder": CHATML}.get(self._form, ())
        self._core.add_special_tokens([tokenizers.AddedToken(name, special=True) for name in specials])
        model = ModelConfig(
            model_dir=write_model(Path(self._folder.name), self._core, template=self._template),
            names=("toy",),
        )
        self._service = Service(self._loop, self._core, GatewayConfig(models=(model,), port=0))
        self._service.engine.max_model_len = CONTEXT
        self._service.call(self._service.restart())
        self._service.script = self._answer
        self.url = self._service.url
        self.requests: list[str] = []
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._service.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._folder.cleanup()

    def _answer(self, prompt: list[int], sampling: Any) -> list[int]:  # noqa: ARG002
        text = self._core.decode(prompt, skip_special_tokens=False)
        said = _said(text, self._form)
        self.requests.append(f"{len(text)} characters, ... {text[-200:]!r} -> {said[:200]!r}")
        return [*self._service.ids(said), 1]


def _said(text: str, form: str = "hermes") -> str:
    if form == "harmony":
        return _harmony(text)
    if "<<<<<<< SEARCH" in text:
        return EDIT
    if TOLD.search(text) if form == "hermes" else SECRET in text:
        thought = "" if form == "hermes" else "I know it.\n</think>\n\n"
        return f"{thought}The note says: {SECRET}"
    offered = [name for name in (WRITER, *READERS) if f'"name": "{name}"' in text]
    called = _called(offered, text)
    return "A note" if called is None else _call(*called, form)


def _called(offered: list[str], text: str) -> tuple[str, dict[str, Any]] | None:
    """Name and arguments of the call that the script makes, None where no tool is offered."""
    if WRITER in offered and NOTE[:26] not in text:
        return WRITER, {"text": NOTE}
    folder = FOLDER.search(text)
    path = f"{folder[1]}/note.txt" if folder else "note.txt"
    for name in offered:
        if name in READERS:
            return name, json.loads(json.dumps(READERS[name]).replace("{path}", path))
    return None


def _call(name: str, arguments: dict[str, Any], form: str) -> str:
    if form != "qwen3-coder":
        return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
    given = "".join(
        f"<parameter={key}>\n{value if isinstance(value, str) else json.dumps(value)}\n</parameter>\n"
        for key, value in arguments.items()
    )
    thought = "I read the file.\n</think>\n\n"
    return f"{thought}<tool_call>\n<function={name}>\n{given}</function>\n</tool_call>"


def _harmony(text: str) -> str:
    if SECRET in text:
        thought = "<|channel|>analysis<|message|>I know it.<|end|><|start|>assistant"
        return f"{thought}<|channel|>final<|message|>The note says: {SECRET}"
    called = _called([name for name in (WRITER, *READERS) if f"type {name} = " in text], text)
    if called is None:
        return "<|channel|>final<|message|>A note"
    name, arguments = called
    head = f"<|start|>assistant to=functions.{name}<|channel|>commentary <|constrain|>json<|message|>"
    return f"<|channel|>analysis<|message|>I read the file.<|end|>{head}{json.dumps(arguments)}"
