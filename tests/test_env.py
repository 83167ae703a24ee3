from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from firelane import env
from firelane.errors import UsageError

OF_SERVICES = [
    "FIRELANE_SERVICE_HOST",
    "FIRELANE_SERVICE_PORT",
    "FIRELANE_SERVICE_PORT_HTTP",
    "FIRELANE_PORT",
    "FIRELANE_PORT_8000_TCP",
    "FIRELANE_PORT_8000_TCP_PROTO",
    "FIRELANE_PORT_8000_TCP_PORT",
    "FIRELANE_PORT_8000_TCP_ADDR",
    "FIRELANE_PORT_53_UDP_ADDR",
    "FIRELANE_LOG_SERVICE_HOST",  # of a Service named firelane-log
    "FIRELANE_CACHE_PORT_8000_TCP",
]


@pytest.mark.parametrize("name", OF_SERVICES)
def test_variables_of_a_kubernetes_service_are_passed_over(name: str) -> None:
    environ = {"HOME": "/", name: "tcp://10.0.0.1:8000"}
    assert env.read(environ) == env.read({"HOME": "/"})
    assert env.unknown(environ) == []


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("FIRELANE_CACHEDIR", "FIRELANE_CACHE_DIR"),
        ("FIRELANE_CACHE", "FIRELANE_CACHE_DIR"),
        ("FIRELANE_CACHE_PATH", "FIRELANE_CACHE_DIR"),
        ("FIRELANE_LOGLEVEL", "FIRELANE_LOG_LEVEL"),
        ("FIRELANE_CXXX", "FIRELANE_CXX"),
        ("FIRELANE_ISAS", "FIRELANE_ISA"),
    ],
)
def test_near_misses_are_refused(name: str, meant: str) -> None:
    with pytest.raises(UsageError, match=f"{name}: is {meant} meant"):
        env.read({"HOME": "/", name: "x"})


@pytest.mark.parametrize("name", ["FIRELANE_REPLICAS", "FIRELANE_", "FIRELANE_NAMESPACE", "FIRELANE_VERSION"])
def test_others_are_told(name: str) -> None:
    environ = {"HOME": "/", name: "x", "FIRELANE_ISA": "portable", "PATH": ""}
    assert env.read(environ).isa == "portable"
    assert env.unknown(environ) == [name]


@pytest.mark.parametrize(("environ", "shown"), [({}, False), ({"FIRELANE_LOG_LEVEL": "debug"}, True)])
def test_tracebacks(environ: dict[str, str], shown: bool) -> None:
    assert env.shows_tracebacks(environ) is shown


def test_limit_of_the_cache() -> None:
    assert env.read({"HOME": "/"}).cache_limit_gib == 0
    assert env.read({"HOME": "/", "FIRELANE_CACHE_LIMIT_GIB": "1.5"}).cache_limit_gib == 1.5
    for text in ("many", "-1", "inf", "nan"):
        with pytest.raises(UsageError, match=f"CACHE_LIMIT_GIB is '{text}': it must be a number of GiB"):
            env.read({"HOME": "/", "FIRELANE_CACHE_LIMIT_GIB": text})


@pytest.mark.parametrize("name", ["FIRELANE_ALLOW_HTTP", "AWS_ALLOW_HTTP"])
def test_plain_http_is_for_those_who_say_so(name: str) -> None:
    assert not env.read({"HOME": "/"}).allow_http
    assert env.read({"HOME": "/", name: "true"}).allow_http
    assert not env.read({"HOME": "/", name: "0"}).allow_http


def test_an_agent_gets_settings_of_its_libraries_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIRELANE_CLUSTER_KEY", "secret")
    monkeypatch.setenv("UCX_NET_DEVICES", "mlx5_0:1")
    monkeypatch.delenv("UCX_TLS", raising=False)
    found = env.for_agent(confined=True, PYTHONPATH="here")
    assert (found["UCX_NET_DEVICES"], found["UCX_TLS"], found["PYTHONPATH"]) == ("mlx5_0:1", "^sm", "here")
    assert "secret" not in found.values()
    assert "UCX_TLS" not in env.for_agent(confined=False)
    monkeypatch.setenv("UCX_TLS", "rc,tcp")
    assert env.for_agent(confined=True)["UCX_TLS"] == "rc,tcp"


SECRETS = {
    "HF_TOKEN": "hf_x",
    "OPENAI_API_KEY": "sk-x",
    "ANTHROPIC_API_KEY": "sk-y",
    "GITHUB_TOKEN": "ghp_x",
    "DATABASE_URL": "postgres://u:p@h/d",
    "KUBECONFIG": "/keys/kube.conf",
}
CLOUD = {"AWS_SECRET_ACCESS_KEY": "s", "AZURE_CLIENT_SECRET": "t", "GOOGLE_APPLICATION_CREDENTIALS": "/key"}
NEEDED = {
    "PATH": "/bin",
    "LC_ALL": "C.UTF-8",
    "OMP_NUM_THREADS": "2",
    "FIRELANE_CACHE_DIR": "/cache",
    "CUDA_VISIBLE_DEVICES": "0",
    "PYTHONPATH": "/lib",
}
KEY = {"FIRELANE_CLUSTER_KEY": "k"}


@pytest.mark.parametrize("stores", [False, True])
@pytest.mark.parametrize("hosts", [False, True])
def test_an_engine_gets_no_secret_that_it_does_not_need(stores: bool, hosts: bool) -> None:
    found = env.for_engine(stores=stores, hosts=hosts, environ=SECRETS | CLOUD | NEEDED | KEY)
    assert found == {"OPENBLAS_NUM_THREADS": "1"} | NEEDED | (CLOUD if stores else {}) | (
        KEY if hosts else {}
    )


def test_every_setting_of_an_engine_reaches_it() -> None:
    known = {f"FIRELANE_{name}": "1" for name in env.KNOWN - {"CLUSTER_KEY"}}
    assert env.for_engine(stores=False, hosts=False, environ=known) == {"OPENBLAS_NUM_THREADS": "1"} | known


def test_child_processes_take_no_modules_out_of_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But where Firelane itself may be found nowhere else."""
    makers = (
        env.for_child,
        env.for_sandbox,
        partial(env.for_agent, confined=True),
        partial(env.for_engine, stores=False, hosts=False),
    )
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    monkeypatch.chdir(tmp_path)
    assert [make().get("PYTHONSAFEPATH") for make in makers] == ["1"] * 4
    monkeypatch.chdir(Path(env.__file__).parents[1])
    assert [make().get("PYTHONSAFEPATH") for make in makers] == [None] * 4
