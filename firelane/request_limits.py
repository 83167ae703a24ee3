"""Limits of one request, which the API, the wire, the engine and the kernels share."""

from __future__ import annotations

MAX_LOGPROBS = 20
"""Alternatives reported for each token."""
MAX_BIAS = 300
"""Entries of logit_bias."""
MAX_SCHEMA_BYTES = 128 << 10
"""Bytes of a JSON schema that an answer must match, at most."""
MAX_GRAMMAR_BYTES = 64 << 10
"""Bytes of any other grammar's text, at most."""
MAX_TOKENIZER_BYTES = 128 << 20
"""Bytes of a tokenizer.json, at most."""
MOST_DRAFTED = 31
"""Tokens of one draft."""
MAX_STOP_IDS = 16
"""Stop tokens: those that the request names and those that end any sequence of the model."""
