"""The file of `firelane node`: it is read, or refused with its line."""

from __future__ import annotations

import atexit
import tempfile
from pathlib import Path

from firelane.errors import UsageError
from firelane.node.config import read_config
from fuzz.target import Target

FOLDER = tempfile.TemporaryDirectory(prefix="fuzz-")
PATH = Path(FOLDER.name) / "node.toml"
atexit.register(FOLDER.cleanup)


def run(data: bytes) -> None:
    PATH.write_bytes(data)
    config = read_config(PATH, ("max_num_seqs",))
    assert config.models
    assert config.policy.budget_bytes is None or config.policy.budget_bytes >= 0
    names = [name for model in config.models for name in (model.name, *model.aliases)]
    assert len(names) == len(set(names)), "one name for two models"


TARGET = Target(
    run=run,
    refusals=(UsageError,),
    words=(
        *(
            b"[node]\n",
            b"[models.a]\n",
            b'source = "x"\n',
            b"[aliases]\n",
            b'b = "a"\n',
            b"budget_gib = 1.5\n",
        ),
        *(
            b"idle_s = ",
            b"pinned = true\n",
            b'load = "start"\n',
            b"priority = -1\n",
            b'tenants = ["t"]\n',
            b"inf",
        ),
        *(
            b"nan",
            b"1e308",
            b"0x7fffffffffffffffff",
            b"1979-05-27",
            b"'''\n",
            b'"""',
            b"[[models]]",
            b"a.b.c = 1\n",
        ),
        *(
            b"[server]\n",
            b"[engine]\n",
            b"min_residence_s = ",
            b"patience_s = ",
            b'aliases = ["b"]\n',
            b"\\u0000",
        ),
    ),
)
