"""Twelve structured answers, six by Instructor and six by LangChain: url, name of the model.

Prints how many ended and fit their type. The texts mean nothing with a small model.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import Enum
from typing import Any, Literal

import instructor
import openai
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

MAX_TOKENS = 600
URL, MODEL = f"{sys.argv[1]}/v1", sys.argv[2]


class Color(Enum):
    red = "red"
    blue = "blue"


class Person(BaseModel):
    name: str = Field(max_length=40)
    age: int = Field(ge=0, le=150)


class Choice(BaseModel):
    """Optional fields, of which none has to be there."""

    kind: Literal["news", "spam", "other"]
    sure: bool = False
    note: str | None = Field(default=None, max_length=60)


class Point(BaseModel):
    """Steps bound the digits: a model that makes sense of nothing would write them without end."""

    x: float = Field(ge=-1000, le=1000, multiple_of=0.5)
    y: float = Field(ge=-1000, le=1000, multiple_of=0.5)


class Drawing(BaseModel):
    """Nested objects in a list."""

    title: str = Field(max_length=40)
    color: Color
    points: list[Point] = Field(max_length=4)


class Order(BaseModel):
    """One object in another, and a dictionary."""

    buyer: Person
    amounts: dict[Literal["apples", "pears"], int]


class Tree(BaseModel):
    """Itself within itself."""

    label: Literal["a", "b"]
    children: list[Tree] = Field(default_factory=list, max_length=1)


class Many(BaseModel):
    """Many optional fields."""

    a: int | None = Field(default=None, ge=0, le=9)
    b: int | None = Field(default=None, ge=0, le=9)
    c: bool | None = None
    d: Literal["x", "y"] | None = None
    e: Color | None = None


TYPES: tuple[type[BaseModel], ...] = (Person, Choice, Drawing, Order, Tree, Many)


def by_instructor(answer: type[BaseModel]) -> Any:
    client = instructor.from_openai(
        openai.OpenAI(base_url=URL, api_key="key", max_retries=0), mode=instructor.Mode.JSON_SCHEMA
    )
    return client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": f"Make up a {answer.__name__}."}],
        response_model=answer,
        max_retries=0,
        max_tokens=MAX_TOKENS,
        seed=1,
    )


def by_langchain(answer: type[BaseModel]) -> Any:
    chat = ChatOpenAI(base_url=URL, api_key="key", model=MODEL, max_tokens=MAX_TOKENS, seed=1, max_retries=0)
    return chat.with_structured_output(answer, method="json_schema").invoke(f"Make up a {answer.__name__}.")


def fits(ask: Callable[[type[BaseModel]], Any], answer: type[BaseModel]) -> bool:
    try:
        made = ask(answer)
    except Exception as error:  # whatever a library raises, the answer is not there
        print(f"{ask.__name__} {answer.__name__}: {str(error)[:300]}")
        return False
    return isinstance(made, answer)


right = [fits(ask, answer) for ask in (by_instructor, by_langchain) for answer in TYPES]
print(f"structured answers that fit: {sum(right)} of {len(right)}")
