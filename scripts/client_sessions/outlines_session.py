"""Answers of given forms, asked for by Outlines as it asks SGLang: url, model, its directory."""

from __future__ import annotations

import json
import re
import sys
from typing import Literal

import openai
import outlines
from outlines.types import CFG, Regex
from pydantic import BaseModel, Field


class Point(BaseModel):
    name: Literal["a", "b"]
    x: int = Field(ge=0, le=99)


GRAMMAR = 'root ::= ("ab" | "cd") [0-9]'
client = openai.OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="key")
model = outlines.from_sglang(client, sys.argv[2])
fit = 0
for _ in range(2):
    fit += re.fullmatch(r"[xyz]{3}-\d{2}", model("Say", Regex(r"[xyz]{3}-\d{2}"), max_tokens=40)) is not None
    fit += Point(**json.loads(model("Say", Point, max_tokens=200))) is not None
    fit += model("Say", Literal["yes", "no"], max_tokens=40) in ("yes", "no")
    fit += re.fullmatch(r"(ab|cd)[0-9]", model("Say", CFG(GRAMMAR), max_tokens=40)) is not None
print(f"fit: {fit} of 8")
