"""Every parameter of the official client's calls is known by name."""

from __future__ import annotations

import inspect

import msgspec
import pytest
from openai.resources.chat.completions import Completions as Chat
from openai.resources.completions import Completions

from firelane.api.chat import ChatRequest
from firelane.api.completions import CompletionRequest
from firelane.api.reading.field_names import REFUSED

CLIENT_ONLY = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}


@pytest.mark.parametrize(
    ("create", "request_type"), [(Chat.create, ChatRequest), (Completions.create, CompletionRequest)]
)
def test_parameters_of_the_client_are_known(create, request_type):
    parameters = set(inspect.signature(create).parameters) - CLIENT_ONLY
    known = {field.encode_name for field in msgspec.structs.fields(request_type)}
    assert parameters - known - set(REFUSED) == set()
