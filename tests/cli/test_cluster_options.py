"""Options of engines on other hosts: what goes together, and what does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from firelane.cli import build_parser
from firelane.cluster.addresses import Address
from firelane.cluster.config import ENGINES_PORT
from firelane.engine_config import EngineConfig
from firelane.errors import UsageError
from firelane.gateway.config import ModelConfig
from firelane.options import fields
from firelane.server.options import cluster as cluster_options
from firelane.server.options import engine as engine_options
from firelane.server.options.sets import SERVE
from firelane.sources.resolve import EMBEDDED

TLS = ["--engine-tls-ca", "a.pem", "--engine-tls-cert", "b.pem", "--engine-tls-key", "c.pem"]


def given(*words, command="serve"):
    return vars(build_parser().parse_args([command, *words]))


def remote(*words):
    return cluster_options.remote_config(given(*words), SERVE)


def test_engines_here_need_no_config():
    assert remote() is None


def test_addresses_and_certificates():
    found = remote("--engines", "localhost:1", "[::1]")
    assert found.addresses == (Address("localhost", 1), Address("::1", ENGINES_PORT))
    assert found.tls is None
    found = remote("--engines", "far:7", *TLS)
    assert (found.tls.ca, found.tls.cert, found.tls.key) == (Path("a.pem"), Path("b.pem"), Path("c.pem"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--engines", "far"], "--engine-tls-ca"),
        (["--engines", "far:0"], "HOST"),
        (["--engines", "far", *TLS[:4]], "--engine-tls-key is missing"),
        (TLS, "--engines"),
        (["--engines", "localhost", "--threads", "2"], "--threads beside --engines"),
        (["--engines", "localhost", "--replicas", "2"], "--replicas beside --engines"),
        (["--engines", "localhost", "--prefill", "1"], "--prefill beside --engines"),
        (["--engines", "localhost", "--decode", "1"], "give --role decode to `firelane engine`"),
        (["--engines", "localhost", "--cluster-key-file", "k"], "--cluster-key-file beside --engines"),
        (["--engines", "localhost", "--kv-transfer-address", "x"], "--kv-transfer-address beside --engines"),
        (["--engines", "localhost", "--kv-transport", "nixl"], "--kv-transport beside --engines"),
        (["--engines", "localhost", "--no-sandbox"], "--no-sandbox beside --engines"),
        (["--engines", "localhost", "--nnodes", "2"], "--nnodes beside --engines"),
        (["--engines", "localhost", "--kv-offloading-size", "2"], "--kv-offloading-size beside --engines"),
        (["--engines", "localhost", "--no-prefix-cache"], "--no-prefix-cache beside --engines"),
        (["--engines", "localhost", "--gateways", "2"], "--gateways"),
        (["--model", "x", "--engines", "localhost"], "--model"),
    ],
)
def test_what_does_not_go_together_is_refused(words, said):
    with pytest.raises(UsageError, match=said):
        remote(*words)


def test_what_gateways_decide_goes_with_engines_elsewhere(tmp_path):
    words = ("--engines", "localhost", "--share-pages", "--routing", "least-tokens")
    assert remote(*words, "--role-controller", "ttft=1s,itl=1s").addresses
    engine = EngineConfig(model_dir=EMBEDDED, cache_dir=tmp_path)
    assert engine_options.engine_options(given(*words), engine).replicas == 1
    assert fields(ModelConfig, given(*words)) == {"routing": "least-tokens", "shares_pages": True}


ROLES = ("--prefill", "1", "--decode", "1")


def targets(*words):
    values = given(*words)
    engine_options.check_controller(values)
    return fields(ModelConfig, values).get("role_targets")


def test_targets_of_roles():
    assert targets(*ROLES) is None
    for where in (ROLES, (*ROLES, "--gateways", "2"), ("--engines", "localhost")):
        found = targets(*where, "--role-controller", "ttft=500ms,itl=50ms")
        assert (found.ttft_s, found.itl_s) == (0.5, 0.05)


def test_targets_that_cannot_be_kept_are_refused(capsys):
    with pytest.raises(UsageError, match="no roles to change; give --prefill and --decode"):
        targets("--role-controller", "ttft=1s,itl=1s")
    with pytest.raises(SystemExit):
        targets(*ROLES, "--role-controller", "ttft=1s")
    assert "argument --role-controller: ttft=1s: give both targets" in capsys.readouterr().err


def test_an_engine_listens_elsewhere_with_certificates_alone():
    values = given("--host", "10.0.0.1", command="engine")
    tls = cluster_options.cluster_tls(values, "--tls")
    with pytest.raises(UsageError, match="--tls-ca"):
        cluster_options.check_plain(Address(values["host"], 1), tls, "--tls")
