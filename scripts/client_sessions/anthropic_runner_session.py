"""A session of the tool runner of Anthropic's Python client: url."""

from __future__ import annotations

import sys
from pathlib import Path

import anthropic
from anthropic import beta_tool


@beta_tool
def read_file(path: str) -> str:
    """Read a file.

    Args:
        path: Where it is.
    """
    return Path(path).read_text()


client = anthropic.Anthropic(base_url=sys.argv[1], api_key="key")
runner = client.beta.messages.tool_runner(
    model="toy",
    max_tokens=500,
    tools=[read_file],
    messages=[{"role": "user", "content": "What does note.txt say?"}],
)
print(runner.until_done().content[-1].text)
