"""The Helm chart, rendered by Helm: what Kubernetes accepts, and starts what it should."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart import IS_THERE, ChartError, linted, rendered

from firelane.gateway.kv_events.config import KvEventsConfig
from tests.deploy.serve_options import parsed

HELM = Path(__file__).parents[2] / "deploy" / "helm"
CHART = HELM / "firelane"
METRICS = Path(__file__).parents[2] / "docs" / "observability.md"
pytestmark = pytest.mark.skipif(not IS_THERE, reason="helm-python-sdk is not installed")

PAIR = {"prefill": {"replicas": 2}, "decode": {"args": ["--max-num-seqs", "64"]}}
ALL: dict[str, Any] = {
    "model": "org/model",
    "args": ["--alias", "gpt=org/model"],
    "apiKeysSecret": "tenants",
    "hubTokenSecret": "hub",
    "clusterKeySecret": "cluster",
    "kvTransport": "nixl",
    "ucx": {"netDevices": "mlx5_0:1"},
    "pools": {**PAIR, "wide": {"nodes": 2, "args": ["--tensor-parallel-size", "2"]}},
    "autoscaling": {"enabled": True},
    "kvEvents": {"enabled": True},
    "inferencePool": {"enabled": True, "endpointPicker": "picker"},
    "sidecar": {"image": "proxy:1"},
    "podMonitor": {"enabled": True},
    "cache": {"existingClaim": "packed"},
    "models": {"existingClaim": "shelf"},
    "nodeSelector": {"disk": "fast"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
}
NIXL: dict[str, Any] = {"pools": PAIR, "clusterKeySecret": "k", "kvTransport": "nixl"}
Manifests = dict[tuple[str, str], dict[str, Any]]


@pytest.fixture(scope="module")
def plain() -> Manifests:
    return rendered(CHART)


@pytest.fixture(scope="module")
def full() -> Manifests:
    return rendered(CHART, **ALL)


def server(pod: dict[str, Any]) -> dict[str, Any]:
    (found,) = pod["containers"]
    return found


def pods(manifests: Manifests) -> dict[str, dict[str, Any]]:
    """Templates of pods that answer requests, by workload."""
    found: dict[str, dict[str, Any]] = {}
    for (kind, name), one in manifests.items():
        if kind == "Deployment":
            found[name] = one["spec"]["template"]
        if kind == "LeaderWorkerSet":
            found[name] = one["spec"]["leaderWorkerTemplate"]["leaderTemplate"]
    return found


def options(pod: dict[str, Any]) -> Any:
    """Parse the options of the `firelane serve` in a pod; the test fails where the parser refuses them."""
    words = [word.replace("$(POD_IP)", "10.0.0.7") for word in server(pod)["args"]]
    return parsed(["serve", *words])


def selects(manifest: dict[str, Any], labels: dict[str, str]) -> bool:
    selector = manifest["spec"]["selector"]
    return selector.get("matchLabels", selector).items() <= labels.items()


@pytest.mark.parametrize("values", [{}, ALL], ids=["plain", "full"])
def test_helm_has_nothing_against_the_chart(values: dict[str, Any]) -> None:
    assert linted(CHART, values) == []


def test_kubernetes_knows_all_fields(plain: Manifests, full: Manifests) -> None:
    kubernetes = pytest.importorskip("kubernetes_validate")
    version = kubernetes.latest_version()
    own = {("Deployment", "mine"), ("Service", "mine"), ("HorizontalPodAutoscaler", "mine-prefill")}
    assert own | {("NetworkPolicy", "mine-pages")} <= {**plain, **full}.keys()
    for (kind, _), one in [*plain.items(), *full.items()]:
        if kind in ("Deployment", "Service", "HorizontalPodAutoscaler", "NetworkPolicy"):
            kubernetes.validate(one, version, strict=True)
        if kind == "LeaderWorkerSet":
            for template in ("leaderTemplate", "workerTemplate"):
                of = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "any"}}
                found = one["spec"]["leaderWorkerTemplate"][template]
                kubernetes.validate(of | {"template": found}, version, strict=True)


def test_the_chart_serves_the_embedded_model(plain: Manifests) -> None:
    (template,) = pods(plain).values()
    pod, given = template["spec"], options(template["spec"])
    assert (given.source, given.allow_anonymous, given.tls_cert) == (None, True, None)
    assert pod["terminationGracePeriodSeconds"] > given.drain_timeout + 5
    assert {volume["name"] for volume in pod["volumes"]} == {m["name"] for m in server(pod)["volumeMounts"]}
    assert selects(plain["Service", "mine"], template["metadata"]["labels"])
    assert plain["Service", "mine"]["spec"]["ports"][0]["targetPort"] == given.port


def test_pods_are_ready_when_their_models_are(full: Manifests) -> None:
    for template in pods(full).values():
        one = server(template["spec"])
        ports = {port["name"]: port["containerPort"] for port in one["ports"]}
        assert one["readinessProbe"]["httpGet"] == {"path": "/health", "port": "metrics"}
        assert ports["metrics"] == options(template["spec"]).metrics_port  # needs neither key nor certificate
        assert "httpGet" not in one["livenessProbe"]  # a model that loads is no reason to end the server


def test_what_is_set_reaches_all_pods(full: Manifests) -> None:
    assert pods(full).keys() == {"mine-prefill", "mine-decode", "mine-wide"}
    for template in pods(full).values():
        pod, given = template["spec"], options(template["spec"])
        assert (given.source, given.alias) == ("org/model", [("gpt", "org/model")])
        mounts = {mount["mountPath"]: mount["name"] for mount in server(pod)["volumeMounts"]}
        assert {str(given.api_keys.parent), str(given.cluster_key_file.parent)} <= mounts.keys()
        claims = [v["persistentVolumeClaim"] for v in pod["volumes"] if "persistentVolumeClaim" in v]
        assert claims == [{"claimName": "packed"}, {"claimName": "shelf"}]
        assert (pod["nodeSelector"], pod["tolerations"][0]["key"]) == ({"disk": "fast"}, "gpu")


def test_https() -> None:
    manifests = rendered(CHART, tlsSecret="certificate")
    (template,) = pods(manifests).values()
    given = options(template["spec"])
    mounts = {mount["mountPath"] for mount in server(template["spec"])["volumeMounts"]}
    assert {str(given.tls_cert.parent), str(given.tls_key.parent)} <= mounts
    assert manifests["Service", "mine"]["spec"]["ports"][0]["name"] == "https"


def test_pools_exchange_pages_and_only_those_for_decode_serve_clients(full: Manifests) -> None:
    found = pods(full)
    for name, role in (("prefill", "prefill"), ("decode", "decode"), ("wide", "prefill-decode")):
        template = found[f"mine-{name}"]
        labels, address = template["metadata"]["labels"], options(template["spec"]).kv_transfer_address
        assert labels["llm-d.ai/role"] == role
        assert address == (None if role == "prefill-decode" else "10.0.0.7:5600")
        assert selects(full["Service", "mine"], labels) == (role != "prefill")
        assert selects(full["InferencePool", "mine"], labels)
        assert selects(full["PodMonitor", "mine"], labels)
    assert options(found["mine-decode"]["spec"]).max_num_seqs == 64
    assert options(found["mine-prefill"]["spec"]).max_num_seqs != 64


def environment(pod: dict[str, Any]) -> dict[str, str]:
    """Variables that have a value of their own."""
    return {one["name"]: one["value"] for one in server(pod)["env"] if "value" in one}


def test_pages_travel_over_the_connection_if_nothing_else_is_said() -> None:
    manifests = rendered(CHART, pools=PAIR, clusterKeySecret="cluster")
    assert {kind for kind, _ in manifests} == {"Deployment", "Service"}
    for template in pods(manifests).values():
        assert options(template["spec"]).kv_transport == "tcp"
        assert environment(template["spec"]) == {}


def test_pages_travel_by_nixl_where_engines_exchange_some(full: Manifests) -> None:
    for name, template in pods(full).items():
        given, is_wide = options(template["spec"]), name == "mine-wide"
        assert (given.kv_transport, given.kv_transfer_address is None) == (
            "tcp" if is_wide else "nixl",
            is_wide,
        )
        ucx = {"UCX_TCP_PORT_RANGE": "5700-5799", "UCX_NET_DEVICES": "mlx5_0:1"}
        assert environment(template["spec"]) == ({} if is_wide else ucx)


def test_ports_without_a_key_are_for_pods_that_exchange_pages(full: Manifests) -> None:
    policy = full["NetworkPolicy", "mine-pages"]["spec"]
    assert policy["policyTypes"] == ["Ingress"]
    among, everybody = policy["ingress"]
    assert "from" not in everybody
    assert "ports" not in among
    (source,) = among["from"]
    assert source == {"podSelector": policy["podSelector"]}
    first, last = map(int, environment(pods(full)["mine-decode"]["spec"])["UCX_TCP_PORT_RANGE"].split("-"))
    opened = {one["port"] for one in everybody["ports"]}
    for name in ("mine-prefill", "mine-decode"):
        template = pods(full)[name]
        assert matches(policy["podSelector"], template["metadata"]["labels"])
        given = options(template["spec"])
        events = KvEventsConfig.parse(given.kv_events_config)
        assert events is not None
        assert opened == {8000, given.metrics_port, int(events.endpoint.rpartition(":")[2])}
        transfer = int(given.kv_transfer_address.rpartition(":")[2])
        assert not opened & {transfer, *range(first, last + 1)}
    assert not matches(policy["podSelector"], pods(full)["mine-wide"]["metadata"]["labels"])


def matches(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    (expression,) = selector["matchExpressions"]
    assert expression["operator"] == "In"
    is_one = labels.get(expression["key"]) in expression["values"]
    return is_one and selector["matchLabels"].items() <= labels.items()


def test_no_workload_has_pods_of_another_one(full: Manifests) -> None:
    """An autoscaler would count them, and do nothing."""
    labels = {name: one["metadata"]["labels"] for name, one in pods(full).items()}
    for (kind, name), one in full.items():
        if kind == "Deployment":
            assert [other for other in labels if selects(one, labels[other])] == [name]


def test_the_proxy_is_before_the_server_for_decode(full: Manifests) -> None:
    decode = pods(full)["mine-decode"]["spec"]
    (proxy,) = decode["initContainers"]
    assert proxy["restartPolicy"] == "Always"
    assert f"--vllm-port={options(decode).port}" in proxy["args"]
    (port,) = full["InferencePool", "mine"]["spec"]["targetPorts"]
    assert {port["number"]} == {one["containerPort"] for one in proxy["ports"]}
    prefill = pods(full)["mine-prefill"]["spec"]
    assert options(prefill).port == port["number"]
    assert "initContainers" not in prefill


def test_the_pool_names_its_picker(full: Manifests) -> None:
    """The fields that the API requires (inference.networking.k8s.io/v1)."""
    one = full["InferencePool", "mine"]
    assert one["apiVersion"] == "inference.networking.k8s.io/v1"
    assert one["spec"]["endpointPickerRef"] == {
        "kind": "Service",
        "name": "picker",
        "port": {"number": 9002},
        "failureMode": "FailClose",
    }


def test_events_have_the_topic_that_pickers_expect(full: Manifests) -> None:
    given = options(pods(full)["mine-prefill"]["spec"])
    config = KvEventsConfig.parse(given.kv_events_config)
    assert config is not None
    assert json.loads(given.kv_events_config)["topic"] == "kv@10.0.0.7:8000@org/model"
    assert config.endpoint == "tcp://*:5557"


def test_ranks_on_several_nodes_get_one_command(full: Manifests) -> None:
    """Places come from LeaderWorkerSet's variables."""
    group = full["LeaderWorkerSet", "mine-wide"]["spec"]["leaderWorkerTemplate"]
    leader, worker = group["leaderTemplate"], group["workerTemplate"]
    assert group["size"] == 2
    assert server(leader["spec"])["args"] == server(worker["spec"])["args"]
    given = options(leader["spec"])
    assert (given.nnodes, given.node_rank, given.master_addr) == (None, None, None)
    assert "readinessProbe" not in server(worker["spec"])  # it serves nothing
    for kind in ("Service", "InferencePool", "PodMonitor"):
        assert not selects(full[kind, "mine"], worker["metadata"]["labels"])


def test_replicas_by_what_pods_measure(full: Manifests) -> None:
    adapter = yaml.safe_load((HELM / "prometheus-adapter.yaml").read_text())["rules"]["custom"]
    series = {name for rule in adapter for name in re.findall(r"(?:vllm|firelane):\w+", rule["seriesQuery"])}
    assert series <= set(re.findall(r"`((?:vllm|firelane):\w+)`", METRICS.read_text()))
    for name, template in pods(full).items():
        scaler = full["HorizontalPodAutoscaler", name]["spec"]
        target = scaler["scaleTargetRef"]
        workload = full[target["kind"], target["name"]]
        assert target["apiVersion"] == workload["apiVersion"]
        assert "replicas" not in workload["spec"]
        assert {one["pods"]["metric"]["name"] for one in scaler["metrics"]} <= series
        assert template["metadata"]["labels"]["app.kubernetes.io/component"] == name.removeprefix("mine-")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"pools": PAIR}, "pool decode: its pods need a key that they share"),
        ({"nodes": 2}, "pool server: its pods need a key that they share"),
        ({"pools": {"decode": {"nodes": 2}}, "clusterKeySecret": "key"}, "leave out its role or its nodes"),
        ({"pools": {"prefill": {}}, "clusterKeySecret": "key"}, "name one whose role is decode"),
        ({"pools": {"a": {"role": "both"}}}, "one of 'prefill', 'decode', 'prefill-decode'"),
        ({"pools": {"A_b": {}}}, "does not match pattern"),
        ({"kvTransport": "rdma"}, "one of 'tcp', 'nixl'"),
        ({"kvTransport": "nixl"}, "nothing travels without pools for prefill and decode"),
        (NIXL | {"ucx": {"firstPort": 5799}}, "give 16 at least"),
        (NIXL | {"ucx": {"lastPort": 5000}}, "give 16 at least"),
        (NIXL | {"ucx": {"lastPort": 65536}}, "/ucx/lastPort"),
        ({"replica": 2}, "additional properties 'replica' not allowed"),
        ({"inferencePool": {"enabled": True}}, "name the Service of the picker"),
        (
            {"pools": {"decode": {}}, "clusterKeySecret": "k", "tlsSecret": "t", "sidecar": {"image": "p"}},
            "leave out tlsSecret",
        ),
    ],
)
def test_values_that_cannot_work_are_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ChartError, match=said):
        rendered(CHART, **values)


def test_all_values_are_used_and_described() -> None:
    text = "".join(path.read_text() for path in (CHART / "templates").iterdir())
    own = re.findall(r"pick \.Values ([^\n]*?) -", text)[0].replace('"', "").split()
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert set(values) == {*re.findall(r"\$?\.?[vV]alues\.(\w+)", text), *own}
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert set(values) | {"global"} == set(schema["properties"])
