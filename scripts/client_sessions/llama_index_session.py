"""A session of LlamaIndex: url."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai_like import OpenAILike


def read_file(path: str) -> str:
    """Read a file."""
    return Path(path).read_text()


async def main() -> None:
    model = OpenAILike(
        model="toy",
        api_base=f"{sys.argv[1]}/v1",
        api_key="key",
        is_chat_model=True,
        is_function_calling_model=True,
        context_window=100_000,
    )
    print(await FunctionAgent(tools=[read_file], llm=model).run("What does note.txt say?"))


asyncio.run(main())
