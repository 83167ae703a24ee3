"""A session of Pydantic AI: url."""

from __future__ import annotations

import sys
from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

provider = OpenAIProvider(base_url=f"{sys.argv[1]}/v1", api_key="key")
agent = Agent(OpenAIChatModel("toy", provider=provider))


@agent.tool_plain
def read_file(path: str) -> str:
    """Read a file."""
    return Path(path).read_text()


print(agent.run_sync("What does note.txt say?").output)
