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


class ScriptedServer:
    """requests: first line of each, for a report."""

    def __enter__(self) -> ScriptedServer:
        self._folder = tempfile.TemporaryDirectory()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._core = byte_tokenizer()
        model = ModelConfig(
            model_dir=write_model(Path(self._folder.name), self._core, template=TEMPLATE), names=("toy",)
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
        said = _said(text)
        self.requests.append(f"{len(text)} characters, ... {text[-200:]!r} -> {said[:200]!r}")
        return [*self._service.ids(said), 1]


def _said(text: str) -> str:
    if "<<<<<<< SEARCH" in text:
        return EDIT
    if TOLD.search(text):
        return f"The note says: {SECRET}"
    folder = FOLDER.search(text)
    path = f"{folder[1]}/note.txt" if folder else "note.txt"
    for name, arguments in READERS.items():
        if f'"name": "{name}"' in text:
            filled = json.loads(json.dumps(arguments).replace("{path}", path))
            return f"<tool_call>\n{json.dumps({'name': name, 'arguments': filled})}\n</tool_call>"
    return "A note"
