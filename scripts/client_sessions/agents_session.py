"""A session of OpenAI's Agents SDK, by /v1/responses: url."""

from __future__ import annotations

import sys
from pathlib import Path

import openai
from agents import Agent, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled


@function_tool
def read_file(path: str) -> str:
    """Read a file."""
    return Path(path).read_text()


set_tracing_disabled(True)
client = openai.AsyncOpenAI(base_url=f"{sys.argv[1]}/v1", api_key="key")
model = OpenAIResponsesModel(model="toy", openai_client=client)
agent = Agent(name="reader", model=model, tools=[read_file])
print(Runner.run_sync(agent, "What does note.txt say?").final_output)
