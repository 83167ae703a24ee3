"""A session of `llm`: url. Its models are named in a file of the user's folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

READER = """
def read_file(path: str) -> str:
    "Read a file"
    return open(path).read()
"""

folder = Path(os.environ["HOME"]) / "llm"
folder.mkdir()
model = f"- model_id: local\n  model_name: toy\n  api_base: {sys.argv[1]}/v1\n  supports_tools: true\n"
(folder / "extra-openai-models.yaml").write_text(model)
words = ("-m", "local", "--key", "key", "--functions", READER, "What does note.txt say?")
command = (str(Path(sys.executable).with_name("llm")), *words)
sys.exit(subprocess.run(command, env={**os.environ, "LLM_USER_PATH": str(folder)}, check=False).returncode)
