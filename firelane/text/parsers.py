"""Names of the parsers of calls and of reasoning that a server can be told to use. Imports nothing: options
of the command list them.
"""

TOOL_PARSERS = ("auto", "none", "llama3_json", "hermes", "mistral")
REASONING_PARSERS = ("auto", "none", "think")
