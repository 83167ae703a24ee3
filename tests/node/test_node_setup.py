"""From a node's file to its models: options of engines and gateway, memory, and what a new file changes."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from firelane.cli import main
from firelane.cli.node_setup import NodeReader
from firelane.engine_config import EngineConfig
from firelane.env import Environment
from firelane.errors import UsageError
from firelane.gateway.engines.roles.role_targets import RoleTargets
from firelane.gateway.tenants.keyfile import hashed, new_key
from firelane.server.model_files import PackedFile
from firelane.server.node_need import GIB, default_kv_bytes
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
    setup = reader(tmp_path, text, port=0).read()
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
        ("[server]\nport = 99999\n[models.a]", "line 2: server.port: .*99999 is more than 65,535"),
        ('[server]\nport = "x"\n[models.a]', "line 2: server.port: 'x' is not a whole number"),
        ('[server]\nhost = "0.0.0.0"\n[models.a]', "line 1: server: .*no key would be needed"),
        (
            "[server]\nallow_anonymous = 1\n[models.a]",
            "line 2: server.allow_anonymous: 1 is not true or false",
        ),
        ('[server]\nallow_origin = "*"\n[models.a]', "line 2: server.allow_origin: '\\*' is not a list"),
        ('[engine]\nbackend = "cpx"\n[models.a]', "line 2: engine.backend: 'cpx' is not one of auto"),
        ("[models.a]\nmax_num_seqs = 0", "line 2: models.a.max_num_seqs: 0 is not 1 or more"),
        ("[server]\nmax_connections = 0\n[models.a]", "line 2: server.max_connections: 0 is not 1 or more"),
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


ROLES = "prefill = 1\ndecode = 2"


def test_models_have_roles_and_shared_pages_of_their_own(tmp_path: Path) -> None:
    text = f"""
[server]
gateways = 2
[engine]
kv_cache_gib = 0.06
[models.roles]
{ROLES}
role_controller = "ttft=500ms,itl=50ms"
routing = "least-tokens"
[models.shares]
replicas = 2
share_pages = true
[models.plain]
"""
    roles, shares, plain = reader(tmp_path, text).read().models
    assert roles.engines.roles == ("prefill", "decode", "decode")
    assert [one.role for one in roles.engine_configs()] == ["prefill", "decode", "decode"]
    assert (roles.engines.replicas, roles.engines.models, roles.engines.index) == (3, 3, 0)
    assert (roles.gateway.routing, plain.gateway.routing) == ("least-tokens", "page-aware")
    assert roles.gateway.role_targets == RoleTargets(ttft_s=0.5, itl_s=0.05)
    assert {one.kv_cache_memory for one in shares.engine_configs()} == {"shared"}
    assert (shares.gateway.shares_pages, plain.gateway.shares_pages) == (True, False)
    assert {one.kv_cache_memory for one in plain.engine_configs()} == {"private"}
    kv = roles.engines.engine.kv_cache_bytes
    weights = [model.policy.need_bytes - kv for model in (roles, shares, plain)]
    assert weights == [3 * weights[2], 2 * weights[2], weights[2]]


def test_a_cache_that_nobody_has_sized_has_a_sequence_for_each_engine(tmp_path: Path) -> None:
    text = f"[models.roles]\n{ROLES}\n[models.plain]\n"
    tight = f"[node]\nbudget_gib = 0.05\n{text}"
    roles, plain = reader(tmp_path, tight).read().models
    assert roles.engines.engine.kv_cache_bytes == 3 * need_of_one_sequence(plain.engines.engine)


def test_a_draft_model_lies_beside_the_file_and_counts_as_memory(tmp_path: Path) -> None:
    shutil.copytree(EMBEDDED, tmp_path / "small")
    text = 'kv_cache_gib = 0.5\nspeculative = "draft=small"\n'
    alone, both = reader(tmp_path, f"[models.alone]\nkv_cache_gib = 0.5\n[models.both]\n{text}").read().models
    assert both.engines.engine.draft_model == tmp_path / "small"
    assert both.engines.engine.kv_cache_bytes == alone.engines.engine.kv_cache_bytes
    weights = [model.policy.need_bytes - GIB // 2 for model in (alone, both)]
    assert weights[1] == 2 * weights[0]
    one = [need_of_one_sequence(model.engines.engine) for model in (alone, both)]
    assert one[1] == 2 * one[0]


def test_a_head_counts_as_memory(tmp_path: Path) -> None:
    shutil.copytree(EMBEDDED.parent / "embedded_eagle", tmp_path / "head")
    text = 'kv_cache_gib = 0.5\nspeculative = "eagle3=head"\n'
    alone, both = reader(tmp_path, f"[models.alone]\nkv_cache_gib = 0.5\n[models.both]\n{text}").read().models
    assert both.engines.engine.eagle3_head == tmp_path / "head"
    assert both.policy.need_bytes > alone.policy.need_bytes
    assert need_of_one_sequence(both.engines.engine) > need_of_one_sequence(alone.engines.engine)


@pytest.mark.parametrize(("value", "why"), [("draft=", "is not one of"), ("draft=gone", "no such directory")])
def test_a_draft_model_that_is_none_is_told_at_its_place(tmp_path: Path, value: str, why: str) -> None:
    with pytest.raises(UsageError, match=rf"node.toml.*models.a.*{why}"):
        reader(tmp_path, f'[models.a]\nspeculative = "{value}"\n').read()


def need_of_one_sequence(engine: EngineConfig) -> int:
    return default_kv_bytes(msgspec.structs.replace(engine, kv_cache_bytes=None), 0).kv_cache_bytes or 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[models.a]\nprefill = 1", "line 2: models.a.prefill: prefill alone: say with decode how many"),
        (
            f"[engine]\n{ROLES}\n[models.a]\nreplicas = 2",
            "line 5: models.a.replicas: replicas beside prefill",
        ),
        ("[engine]\ndecode = 1\n[models.a]", "line 2: engine.decode: decode alone: say with prefill"),
        ("[models.a]\nshare_pages = true", "line 2: models.a.share_pages: share_pages is of replicas"),
        (
            '[models.a]\nrole_controller = "ttft=1s,itl=1s"',
            "line 2: models.a.role_controller: role_controller: .*give prefill and decode, too",
        ),
        (
            f'[models.a]\n{ROLES}\nrole_controller = "ttft"',
            "line 4: models.a.role_controller: ttft: give both targets",
        ),
        (
            f"[models.a]\n{ROLES}\nno_prefix_cache = true",
            "line 4: models.a.no_prefix_cache: no_prefix_cache beside prefill and decode",
        ),
        ("[models.a]\nprefill = 0", "line 2: models.a.prefill: 0 is not 1 or more"),
        (
            f"[node]\nbudget_gib = 0.03\n[models.a]\n{ROLES}\nkv_cache_gib = 0.001",
            "line 3: models.a: it needs 0.03 GiB .*, and the node has 0.03 GiB",
        ),
    ],
)
def test_roles_that_cannot_be_are_refused_at_their_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        reader(tmp_path, text).read()


def test_other_roles_are_other_engines(tmp_path: Path) -> None:
    text = f"[models.a]\n{ROLES}"
    (one,), (same,), (other,) = (
        reader(tmp_path, changed).read().models
        for changed in (text, text + '\nrole_controller = "ttft=1s,itl=1s"', text.replace("2", "3"))
    )
    assert not same.engines_differ(one)
    assert "role_targets=None->" in one.difference(same)
    assert other.engines_differ(one)


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
