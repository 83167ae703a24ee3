"""A session of OpenAI's Agents SDK whose first call is cut at the limit of its answer: url.

The SDK's model for /v1/chat/completions sends the call back and goes on. Its model for /v1/responses raises
on an answer that is cut, so it goes on from what the first was given: the same call and its result.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import openai
from agents import (
    Agent,
    ModelBehaviorError,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)

LIMIT = 200


@function_tool
def write_note(text: str) -> str:
    """Write a note."""
    raise AssertionError(f"the call was not cut: {text}")


@function_tool
def read_file(path: str) -> str:
    """Read a file."""
    return Path(path).read_text()


def agent(model: Any) -> Agent[Any]:
    settings = ModelSettings(max_tokens=LIMIT)
    return Agent(name="writer", model=model, tools=[write_note, read_file], model_settings=settings)


def is_cut(arguments: str) -> bool:
    try:
        json.loads(arguments)
    except ValueError:
        return True
    return False


set_tracing_disabled(True)
client = openai.AsyncOpenAI(base_url=f"{sys.argv[1]}/v1", api_key="key", max_retries=0)
chat = agent(OpenAIChatCompletionsModel(model="toy", openai_client=client))
responses = agent(OpenAIResponsesModel(model="toy", openai_client=client))
question = "Write down what note.txt says"

first = Runner.run_sync(chat, question)
items = first.to_input_list()
calls = [item for item in items if item.get("type") == "function_call"]
print("cut:", [call["name"] for call in calls if is_cut(call["arguments"])])
print("chat:", first.final_output)
try:
    Runner.run_sync(responses, question)
except ModelBehaviorError as error:
    print("responses, first turn:", error)
ended = next(i for i, item in enumerate(items) if item.get("type") == "function_call_output")
print("responses:", Runner.run_sync(responses, items[: ended + 1]).final_output)
