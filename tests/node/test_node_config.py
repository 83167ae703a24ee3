"""The file of a node: what it says, and what is said of one that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from firelane.errors import UsageError
from firelane.node.config import read_config

GOOD = """
[node]
budget_gib = 1.5
min_residence_s = 7

[server]
port = 0

[engine]
backend = "null"

[models.chat]
source = "org/chat"
aliases = ["gpt"]
priority = 3
pinned = true
tenants = ["acme"]
weights = "int8"

[models."org/embed:v2"]
load = "start"
idle_s = 2.5

[aliases]
gpt-4 = "gpt"
best = "gpt-4"
"""


def read(tmp_path: Path, text: str):
    path = tmp_path / "node.toml"
    path.write_text(text)
    return read_config(path, ("weights",))


def test_what_a_file_says(tmp_path: Path) -> None:
    config = read(tmp_path, GOOD)
    assert config.policy.budget_bytes == 3 << 29
    assert (config.policy.min_residence_s, config.policy.patience_s) == (7.0, 2.0)
    assert (config.server, config.engine) == ({"port": 0}, {"backend": "null"})
    chat, embed = config.models
    assert (chat.name, chat.source, chat.tenants) == ("chat", "org/chat", ("acme",))
    assert (chat.aliases, chat.options) == (("gpt", "gpt-4", "best"), {"weights": "int8"})
    assert (chat.policy.priority, chat.policy.loads_first, chat.policy.idle_s) == (3, True, None)
    assert (embed.name, embed.source, embed.tenants) == ("org/embed:v2", None, None)
    assert (embed.policy.at_start, embed.policy.pinned, embed.policy.idle_s) == (True, False, 2.5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no model: write"),
        ("[models.a]\nx = ", "at end of document|line 2"),
        ("[models.a]\n[models.a]", "line 2.*: Cannot declare"),
        ("[modles.a]", "line 1: modles: no such key: did you mean models"),
        (
            "[node]\nbugdet_gib = 1\n[models.a]",
            "line 2: node.bugdet_gib: no such key: did you mean budget_gib",
        ),
        ("[node]\nbudget_gib = 0\n[models.a]", "line 2: node.budget_gib: no model fits"),
        ("[node]\nbudget_gib = -1\n[models.a]", "line 2: node.budget_gib: -1 is not a number from 0"),
        ("[node]\nretry_s = nan\n[models.a]", "line 2: node.retry_s: nan is not"),
        ("[node]\nretry_s = true\n[models.a]", "line 2: node.retry_s: True is not a number"),
        ("models = 3", "line 1: models: it must be a table"),
        ("[models]\na = 3", "line 2: models.a: it must be a table"),
        ("[models.a]\npriorty = 3", "line 2: models.a.priorty: no such key: did you mean priority"),
        ("[models.a]\npriority = 1.5", "line 2: models.a.priority: 1.5 is not a whole number"),
        ("[models.a]\npinned = 1", "line 2: models.a.pinned: 1 is not true or false"),
        ('[models.a]\nload = "lazy"', "line 2: models.a.load: 'lazy' is not one of start, request"),
        ("[models.a]\nsource = 7", "line 2: models.a.source: 7 is not a directory or a hub id"),
        ('[models."a\\nb"]', "a model needs a name that can be printed"),
        ("[models.a]\n\ntenants = [3]", "line 3: models.a.tenants: 3 is not a name"),
        ('[models."a/b"]\nidle_s = "1"', "line 2: models.\"a/b\".idle_s: '1' is not a number"),
        ('[models.a]\n[models.b]\naliases = ["a"]', "line 3: models.b.aliases: the name 'a' is given twice"),
        ('[models.a]\naliases = ["x"]\n[aliases]\nx = "a"', "line 4: aliases.x: the name 'x' is given twice"),
        ('[models.a]\n[aliases]\nx = "b"', "line 3: aliases.x: no model or alias is called 'b'"),
        (
            '[models.a]\n[aliases]\nx = "y"\ny = "z"\nz = "x"',
            "line 5: aliases.z: aliases go in a circle: x -> y -> z -> x",
        ),
        ('[models.a]\n[aliases]\nx = "x"', "line 3: aliases.x: aliases go in a circle: x -> x"),
        ('[models.""]', 'models."": a model needs a name'),
    ],
)
def test_what_is_wrong_is_told_with_line_and_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path / 'node.toml'}: ")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("text", ["a = " + "[" * 5000 + "]" * 5000, "a = " + "{b=" * 5000 + "1" + "}" * 5000])
def test_deep_values_are_told(tmp_path: Path, text: str) -> None:
    path = tmp_path / "node.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"node\.toml: values are nested too deeply"):
        read_config(path)


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null", "/proc"])
def test_what_is_no_file_is_not_read(path: str) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_config(Path(path))


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_config(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not text in UTF-8"):
        read_config(tmp_path / "bytes.toml")
