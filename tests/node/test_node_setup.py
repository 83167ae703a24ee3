"""From a node's file to its models: options of engines and gateway, memory, and what a new file changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from firelane.cli import main
from firelane.cli.node_need import GIB
from firelane.cli.node_plan import PackedFile
from firelane.cli.node_setup import NodeReader
from firelane.env import Environment
from firelane.errors import UsageError
from firelane.gateway.tenants.keyfile import hashed, new_key
from firelane.sources.resolve import EMBEDDED


def reader(tmp_path: Path, text: str, **given) -> NodeReader:
    path = tmp_path / "node.toml"
    path.write_text(text)
    environment = Environment(cache_dir=tmp_path / "cache")
    return NodeReader(path, environment, lambda: 10 * GIB, given)


def test_options_go_to_gateway_and_engines_as_those_of_serve_do(tmp_path: Path) -> None:
    text = """
[server]
max_queue = 7
api_keys = "keys.toml"
log_format = "json"
[engine]
backend = "null"
max_num_seqs = 4
[models.a]
aliases = ["x"]
tenants = ["acme"]
tool_parser = "none"
[models.b]
max_num_seqs = 2
kv_cache_gib = 0.5
weights_pages = "huge"
"""
    setup = reader(tmp_path, text, host=None, port=0).read()
    gateway, (a, b) = setup.gateway, setup.models
    assert (gateway.max_queue, gateway.port, gateway.host) == (7, 0, "127.0.0.1")
    assert gateway.api_keys == tmp_path / "keys.toml"
    assert gateway.models == (a.gateway, b.gateway)
    assert (a.gateway.aliases, a.gateway.tenants) == ((("x", "a"),), ("acme",))
    assert (a.gateway.tool_parser, a.gateway.model_dir) == ("none", EMBEDDED)
    assert (a.engines.engine.max_num_seqs, b.engines.engine.max_num_seqs) == (4, 2)
    assert (a.engines.engine.weights_pages, b.engines.engine.weights_pages) == ("file", "huge")
    assert b.engines.engine.kv_cache_bytes == GIB // 2
    assert b.policy.need_bytes > GIB // 2
    assert setup.plan.policy.budget_bytes == 8 * GIB
    assert setup.lines()[0].startswith("a, x: 0.0")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[server]\nprot = 1\n[models.a]", "line 2: server.prot: no such key: did you mean port"),
        ("[server]\nport = 99999\n[models.a]", "line 2: server.port: .*99999 is not a port"),
        ('[server]\nport = "x"\n[models.a]', "line 2: server.port: 'x' is not a whole number"),
        ('[server]\nhost = "0.0.0.0"\n[models.a]', "line 1: server: .*no key would be needed"),
        (
            "[server]\nallow_anonymous = 1\n[models.a]",
            "line 2: server.allow_anonymous: 1 is not true or false",
        ),
        ('[server]\nallow_origin = "*"\n[models.a]', "line 2: server.allow_origin: '\\*' is not a list"),
        ('[engine]\nbackend = "cpx"\n[models.a]', "line 2: engine.backend: 'cpx' is not one of auto"),
        ("[models.a]\nmax_num_seqs = 0", "line 2: models.a.max_num_seqs: 0 is not 1 or more"),
        ("[models.a]\nmax_num_seqs = [1]", "line 2: models.a.max_num_seqs: .* is not a plain value"),
        ("[models.a]\nmodel = 3", "line 2: models.a.model: no such key"),
        ('[models.a]\nsource = "/nowhere"', "line 1: models.a: .*no such directory"),
        (
            "[node]\nbudget_gib = 0.01\n[models.a]\nkv_cache_gib = 1",
            "line 3: models.a: it needs 1.01 GiB .*raise",
        ),
        (
            "[node]\nbudget_gib = 1.5\n[engine]\nkv_cache_gib = 1\n[models.a]\npinned = true\n[models.b]",
            "models.b: it needs 1.01 GiB .* 1.01 GiB of it for pinned models",
        ),
        (
            '[node]\nbudget_gib = 1.5\n[models.a]\nload = "start"\nkv_cache_gib = 1\n'
            '[models.b]\nload = "start"\nkv_cache_gib = 1',
            "models that are pinned or loaded at the start need 2.02 GiB, and the node has 1.50",
        ),
        ('[models.a]\ntenants = ["acme"]', "line 2: models.a.tenants: without server.api_keys there are no"),
    ],
)
def test_what_is_wrong_is_told_with_line_and_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        reader(tmp_path, text).read()


def test_tenants_that_the_key_file_lacks_are_told(tmp_path: Path, capsys) -> None:
    text = '[server]\napi_keys = "keys.toml"\n[models.a]\ntenants = ["acme", "acne"]\n[models.b]'
    setup = reader(tmp_path, text).read()
    with pytest.raises(UsageError, match=r"keys\.toml"):
        setup.unknown_tenants()
    (tmp_path / "keys.toml").write_text(f'[tenants.acme]\nkeys = ["{hashed(new_key())}"]\n')
    (line,) = setup.unknown_tenants()
    assert line == f"a: {tmp_path}/keys.toml has no tenant 'acne' with a key: did you mean acme?"
    assert main(["node", str(tmp_path / "node.toml"), "--check"]) == 0
    assert line in capsys.readouterr().out


def test_what_differs_between_two_files(tmp_path: Path) -> None:
    one = reader(tmp_path, "[models.a]\n[models.b]\nmax_num_seqs = 3").read()
    other = reader(tmp_path, '[models.a]\npriority = 2\naliases = ["x"]\n[models.b]\nmax_num_seqs = 4').read()
    (a, b), (new_a, new_b) = one.models, other.models
    assert a.difference(new_a) == "priority=0->2 aliases=()->(('x', 'a'),)"
    assert not new_a.engines_differ(a)
    assert b.difference(new_b) == "max_num_seqs=3->4 engines=restart"
    assert new_b.engines_differ(b)
    fewer = reader(tmp_path, "[models.a]").read().models[0]
    assert (fewer == a, fewer.engines_differ(a)) == (False, False)


def test_a_mark_says_that_a_model_was_loaded_with_these_options(tmp_path: Path) -> None:
    (one,) = reader(tmp_path, "[models.a]").read().models
    (other,) = reader(tmp_path, '[models.a]\nweights = "int8"').read().models
    PackedFile(one.engines).set()
    assert PackedFile(one.engines).is_set
    assert not PackedFile(other.engines).is_set


def test_a_mark_that_cannot_be_written_is_none(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file in its place")
    (one,) = reader(tmp_path, "[models.a]").read().models
    PackedFile(one.engines).set()
    assert not PackedFile(one.engines).is_set
