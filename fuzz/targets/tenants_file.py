"""Files of tenants and of prices: a letter for the kind, then the file. It is read, or refused."""

from __future__ import annotations

import atexit
import tempfile
from functools import partial
from pathlib import Path

from firelane.errors import UsageError
from firelane.gateway.requests.usage_log import Prices
from firelane.gateway.tenants.keyfile import read_key_file
from fuzz.json_mutator import mutate_json
from fuzz.target import Target

FOLDER = tempfile.TemporaryDirectory(prefix="fuzz-")
atexit.register(FOLDER.cleanup)
KEYS_TOML, KEYS_JSON, PRICES_TOML = (
    Path(FOLDER.name) / name for name in ("keys.toml", "keys.json", "prices.toml")
)


def run(data: bytes) -> None:
    path = (KEYS_TOML, KEYS_JSON, PRICES_TOML)[(data[0] if data else 0) % 3]
    path.write_bytes(data[1:])
    if path is PRICES_TOML:
        prices = Prices(path)
        assert prices.of(("a", "default")).cost(3, 1, 2) >= 0.0
        return
    for name, tenant in read_key_file(path).tenants.items():
        assert name == tenant.name
        assert tenant.weight > 0


TARGET = Target(
    run=run,
    mutate=partial(mutate_json, prefix=1),
    refusals=(UsageError,),
    words=(
        *(
            b"[tenants.a]\n",
            b'keys = ["sha256:',
            b"0" * 64,
            b"weight = 2.0\n",
            b"requests_per_minute = 1\n",
            b"inf",
        ),
        *(
            b'{"tenants":{"a":{"keys":[]}}}',
            b'"weight":',
            b"admin = true\n",
            b'models = ["m"]\n',
            b"nan",
            b"1e308",
        ),
        *(
            b"[models.a]\n",
            b"[a]\n",
            b"input = 1.0\n",
            b"output = ",
            b"cached = ",
            b"max_concurrent = ",
            b"\\u0000",
        ),
    ),
)
