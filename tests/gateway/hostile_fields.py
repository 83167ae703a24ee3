"""Good requests, and values that their fields must not have."""

from __future__ import annotations

from typing import Any

COMPLETIONS, CHAT, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
MESSAGES = "/v1/messages"
RUN = "/client/v4/accounts/a/ai/run/toy"
TOKENIZE, DETOKENIZE, EMBEDDINGS = "/tokenize", "/detokenize", "/v1/embeddings"
OLLAMA_CHAT, OLLAMA_GENERATE, OLLAMA_EMBED = "/api/chat", "/api/generate", "/api/embed"
OLLAMA_PATHS = (OLLAMA_CHAT, OLLAMA_GENERATE, OLLAMA_EMBED)
SCORE, RERANK = "/v1/score", "/v1/rerank"
SYSTEMONE, DECISIONS = "/v1/systemone", "/v1/decisions"
RENDER_CHAT, RENDER = "/v1/chat/completions/render", "/v1/completions/render"
NATIVE, INFILL, TEMPLATE = "/completion", "/infill", "/apply-template"
USER = [{"role": "user", "content": "x"}]
GOOD: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "x", "max_tokens": 2},
    CHAT: {"messages": USER, "max_tokens": 2},
    RESPONSES: {"input": "x", "max_output_tokens": 2},
    MESSAGES: {"messages": USER, "max_tokens": 2},
    RUN: {"prompt": "x", "max_tokens": 2},
    TOKENIZE: {"prompt": "x"},
    DETOKENIZE: {"tokens": [7]},
    EMBEDDINGS: {"input": "x"},
    OLLAMA_CHAT: {"model": "toy", "messages": USER, "stream": False, "options": {"num_predict": 2}},
    OLLAMA_GENERATE: {"model": "toy", "prompt": "x", "stream": False, "options": {"num_predict": 2}},
    OLLAMA_EMBED: {"model": "toy", "input": "x"},
    SCORE: {"text_1": "x", "text_2": "y", "pooling": "last"},
    RERANK: {"query": "x", "documents": ["y"], "pooling": "last"},
    SYSTEMONE: {"state": "x", "questions": {"q": {"type": "noul"}}},
    DECISIONS: {"input": "x", "questions": [{"type": "predicate", "instructions": "?"}]},
    RENDER_CHAT: {"messages": USER},
    RENDER: {"prompt": "x"},
    NATIVE: {"prompt": "x", "n_predict": 2},
    TEMPLATE: {"messages": USER},
}
TEXT_PATHS = (COMPLETIONS, CHAT, RESPONSES, MESSAGES, RUN)

NOT_NUMBERS: list[Any] = ["1", [], {}, [1], True]
NUMBERS: dict[str, list[Any]] = {
    "temperature": [-0.1, 2.01, 1e300],
    "top_p": [-0.1, 1.1],
    "n": [0, -1, 129, 1.5, 2**70],
    "seed": [2**63, -(2**63) - 1, 0.5],
    "presence_penalty": [-2.1, 2.1],
    "frequency_penalty": [-2.1, 2.1],
    "top_k": [-2, 1.5, 2**31],
    "min_p": [-0.1, 1.1],
    "repetition_penalty": [0, -1, 10.1],
    "min_tokens": [-1, 3, 2**31],
    "max_tokens": [-2, 0, 1.5, 2**31, 10**6],
}
SHARED = ("temperature", "top_p", "seed", "top_k", "repetition_penalty")
OWN_NUMBERS = {
    COMPLETIONS: (*NUMBERS, "logprobs"),
    CHAT: (*NUMBERS, "max_completion_tokens", "top_logprobs"),
    RESPONSES: (*SHARED, "min_p", "min_tokens", "max_output_tokens", "top_logprobs", "max_tool_calls"),
    MESSAGES: ("temperature", "top_p", "top_k", "max_tokens"),
    RUN: (*SHARED, "presence_penalty", "frequency_penalty", "max_tokens"),
}
WIDER = {
    (MESSAGES, "max_tokens"): [-1, 0, 1.5, 2**31],
    (RUN, "temperature"): [-0.1, 5.1],
    (RUN, "top_k"): [-1, 1.5],
    (COMPLETIONS, "max_tokens"): [-2, 1.5],
}
FURTHER = {
    "logprobs": [-1, 10**4, 0.5],
    "max_completion_tokens": [-2, 0, 10**6],
    "max_output_tokens": [-1, 0, 10**6],
    "top_logprobs": [-1, 10**4, 1],
    "max_tool_calls": [0, -1],
}
OLLAMA_OPTIONS: dict[str, list[Any]] = {
    "num_predict": [-3, 1.5, 2**31],
    "temperature": [-0.1, 5.1, 1e300],
    **{name: NUMBERS[name] for name in ("top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty")},
    "seed": [2**63, 0.5],
    "repeat_penalty": [0, -1, 10.1],
    "stop": [1, [1], "", [""], ["a"] * 17],
    "mirostat": [1, 2],
    "tfs_z": [0.5],
    "typical_p": [0.5],
}

WRONG_TYPES: dict[str, dict[str, list[Any]]] = {
    COMPLETIONS: {
        "prompt": [None, 1, {}, [], [[]], ["a", 1], [1, "a"], [[1], "a"], [-1], [0.5], [2**31], [10**6]],
        "stop": [1, [1], "", [""], ["a"] * 17, "s" * 1025, [["a"]], {}],
        "logit_bias": [[], {"a": 1}, {"-1": 1}, {"1": 101}, {"1": "a"}, {"1000000": 1}, {"1": None}],
        "stop_token_ids": [1, ["a"], [-1], [2**31], [10**6], list(range(17)), list(range(129))],
        "stream": ["yes", 1, []],
        "stream_options": [{"include_usage": True}, {"surprise": 1}, 1],
        "echo": ["yes", 1],
        "suffix": ["tail", 1],
        "best_of": ["a"],
        "model": [1, [], "another", "", "../../etc/passwd", "m" * 10_000, "toy\x00"],
        "cache_salt": ["", "s" * 257, 1],
        "temprature": [1],
    },
    CHAT: {
        "messages": [
            None,
            [],
            {},
            "x",
            [1],
            [{}],
            [{"role": "user"}],
            [{"role": "robot", "content": "x"}],
        ],
        "tools": [1, [1], [{}], [{"type": "web_search"}], [{"type": "function"}]],
        "tool_choice": ["maybe", "required", 1, {"type": "function", "function": {"name": "f"}}],
        "response_format": [
            1,
            {},
            {"type": "xml"},
            {"type": "json_schema"},
            {"type": "json_schema", "a": 1},
        ],
        "chat_template_kwargs": [1, [], {str(i): i for i in range(65)}],
        "modalities": [["audio"]],
        "audio": [{"voice": "x"}],
        "functions": [[{"name": "a b"}], [1], {}],
        "bad_words": ["a", [""], ["a" * 257], [1]],
        "allowed_token_ids": [[], [-1], ["a"], [10**6]],
        "grammar": ["", 1],
        "repeat_penalty": [0, -1, 11],
        "logprobs": [1, "yes"],
        "top_logprobs": [2],
        "continue_final_message": [True, "yes"],
        "stop": [["a"] * 17, ""],
        "model": ["another", "@cf/x/y"],
        "options": [{"rejectIfBusy": "yes"}, {"other": 1}, 1],
    },
    RESPONSES: {
        "input": [None, [], "", 1, {}, [1], [{}], [{"role": "user"}]],
        "instructions": [1, [], {}],
        "previous_response_id": [1, []],
        "metadata": [
            1,
            {"a": 1},
            {"": "x"},
            {"k" * 65: "x"},
            {"a": "x" * 513},
            {str(i): "x" for i in range(17)},
        ],
        "text": [
            1,
            {"format": {"type": "xml"}},
            {"verbosity": "endless"},
            {"format": {"type": "json_schema"}},
        ],
        "reasoning": [1, {"summary": "long"}, {"effort": 1}, {"surprise": 1}],
        "truncation": ["middle", 1],
        "include": [1, ["everything"], ["a"] * 17],
        "tools": [1, [1], [{"type": "namespace"}], [{"type": "function"}]],
        "tool_choice": ["maybe", "required", 1],
        "background": ["yes", 1],
        "conversation": [1, {}, {"id": 1}],
        "prompt": [{"id": "p"}],
        "stream_options": [{"include_obfuscation": "yes"}, {"include_obfuscation": False}],
        "store": ["yes", 1],
        "model": ["another", 1],
    },
    MESSAGES: {
        "messages": [None, [], {}, "x", [1], [{}], [{"role": "user"}], [{"role": "robot", "content": "x"}]],
        "system": [1, {}, [1], [{}], [{"type": "image"}]],
        "tools": [1, [1], [{}], [{"type": "bash_20250124", "name": "b"}], [{"name": "f"}]],
        "tool_choice": ["any", {"type": "any"}, {"type": "tool", "name": "f"}, {}, 1],
        "thinking": [True, {}, {"type": "deep"}, {"type": "enabled", "budget_tokens": -1}],
        "output_config": [1, {"effort": "huge"}, {"format": {"type": "xml"}}, {"surprise": 1}],
        "output_format": [1, {"type": "json_schema"}],
        "stop_sequences": ["x", [""], ["a"] * 17, [1]],
        "stream": ["yes", 1],
        "metadata": [1, {"user_id": 1}],
        "model": ["another", 1],
        "temprature": [1],
    },
    RUN: {
        "prompt": [None, 1, "", []],
        "messages": [USER, [], 1],
        "raw": ["yes", 1],
        "lora": [],
        "functions": [[{"name": "f", "code": "x"}]],
        "tools": [1, [1]],
        "response_format": [{"type": "xml"}, {"type": "json_schema"}],
        "options": [{"rejectIfBusy": "yes"}, {"surprise": 1}],
    },
    OLLAMA_CHAT: {
        "messages": [
            {},
            "x",
            [1],
            [{}],
            [{"role": "robot", "content": "x"}],
            [{"role": "user", "content": []}],
        ],
        "tools": [
            1,
            [1],
            [{}],
            [{"function": {"name": "a b"}}],
            [{"type": "web", "function": {"name": "f"}}],
        ],
        "format": ["xml", 1, []],
        "think": ["", 1, [], "x" * 33],
        "options": [1, [], {"temperature": "a"}, {"mirostat": 1}, {"surprise": 1}],
        "top_logprobs": [2, -1, 21],
        "stream": ["yes", 1],
        "model": [None, 1, "", "another", "toy:7b", "m" * 10_000, "toy\x00", ":latest:latest"],
        "temprature": [1],
    },
    OLLAMA_GENERATE: {
        "prompt": [1, [], {}],
        "system": [1, []],
        "raw": ["yes", 1],
        "suffix": ["x", 1],
        "template": ["{{ .Prompt }}", 1],
        "context": [[1], "x", {"a": 1}],
        "images": [["aGk="], "x", 1],
        "format": ["yaml", 1],
        "keep_live": ["5m"],
    },
    OLLAMA_EMBED: {
        "input": [1, {}, [1], ["a", 1], ["a", ""], ["x"] * 2049],
        "dimensions": [-1, 10**6, "a"],
        "truncate": ["yes", 1],
        "options": [1, {"top_k": "a"}],
    },
    SCORE: {
        "text_1": [None, 1, "", [], [""], [1], ["a", "b"]],
        "text_2": [None, 1, "", [], [1], ["x"] * 2048],
        "queries": ["x"],
        "truncate_prompt_tokens": [0, -2, "a"],
        "pooling": ["cls", 1],
        "instruction": ["x"],
        "chat_template": ["x"],
        "x": [1],
    },
    RERANK: {
        "query": [None, 1, "", []],
        "documents": [None, 1, "x", [], [""], [1], [{}], [{"text": 1}], ["x"] * 2048],
        "top_n": [-1, "a", 0.5],
        "return_documents": ["yes", 1],
        "x": [1],
    },
    RENDER_CHAT: {"messages": [[], "x", [{"role": "robot"}]], "temperature": [3], "x": [1]},
    NATIVE: {
        "prompt": [None, 1, {}, [], ["a", "b"], [[1], [2]], [10**6], [-1]],
        "n_predict": [-3, 1.5, 2**31],
        "n_cmpl": [0, 2],
        "n_probs": [-1, 21, "a"],
        "response_fields": ["x", [1], ["x"] * 65],
        "t_max_predict_ms": ["a", 1e300],
        "mirostat": [1],
    },
    TEMPLATE: {"messages": [None, [], "x", [{"role": "robot"}]]},
    RENDER: {"prompt": [None, [], [10**6 * 10**6], ["a", 1]], "x": [1]},
    TOKENIZE: {"prompt": [None, 1, [], {}], "messages": [USER, [], 1], "model": ["another"], "x": [1]},
    DETOKENIZE: {"tokens": [None, 1, "x", ["a"], [-1], [2**31], [2**64], [0.5], [[1]]], "x": [1]},
    EMBEDDINGS: {
        "input": [None, [], {}, [[]], ["a", 1], [-1], [10**6], [""]],
        "dimensions": [0, -1, 10**6, "a"],
        "encoding_format": ["xml", 1],
    },
}
