"""`serve` starts an engine for each of its models, and ends when one of them cannot start."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from firelane.cli import build_parser
from firelane.engine_config import EngineConfig
from firelane.engine_state import GaveUp
from firelane.env import Environment
from firelane.errors import UsageError
from firelane.gateway.config import GatewayConfig, ModelConfig
from firelane.options import fields
from firelane.server.engine_shares import EngineOptions
from firelane.server.inherited_setup import raise_file_limit
from firelane.server.model import Model
from firelane.server.model_spec import fixed_models, lone_model
from firelane.server.options import engine as engine_options
from firelane.server.options import gateway as gateway_options
from firelane.server.options.served_models import ServedModels
from firelane.server.progress import ProgressDisplay
from firelane.server.service import _Service
from firelane.server.start_lines import cache_text, products_text, role_text, states_text
from firelane.wire.frames import Loading
from tests import ready_frame


def options_of(tmp_path: Path, **changes: Any) -> EngineOptions:
    return EngineOptions(engine=EngineConfig(model_dir=tmp_path, cache_dir=tmp_path), **changes)


@pytest.fixture
def service(tmp_path: Path) -> _Service:
    models = tuple(ModelConfig(model_dir=tmp_path, names=(name,)) for name in ("a", "b"))
    config = GatewayConfig(models=models, host="127.0.0.1", port=0, max_queue=1)
    models = fixed_models(config, [options_of(tmp_path, models=2)] * 2)
    service = _Service(config, models, ProgressDisplay())
    for model in service._models:
        model.replicas = SimpleNamespace(serving=[], links=[])  # pyright: ignore[reportAttributeAccessIssue]
    service._port.number = 1
    return service


READY = msgspec.structs.replace(ready_frame.READY, max_model_len=2048, num_blocks=64, kv_bytes=3_000_000)


def serve_all(service: _Service) -> None:
    for model in service._models:
        model.replicas.serving.append("link")  # pyright: ignore
        model._on_event("0", READY)


def test_it_announces_when_all_models_are_ready(service, capsys) -> None:
    first, second = list(service._models)
    first._on_event("0", READY)
    assert "serving" not in capsys.readouterr().err
    second._on_event("0", READY)
    assert "serving  a, b at http://127.0.0.1:1 " in capsys.readouterr().err
    second._on_event("1", READY)
    assert "serving" not in capsys.readouterr().err


def test_a_model_that_cannot_start_ends_the_server(service) -> None:
    service._models["a"].replicas.serving.append("link")
    service._models["a"]._on_event("0", READY)
    service.on_event("b", GaveUp("no such file", 7))
    assert service._shutdown.has_begun
    assert (str(service._failure), service._failure.exit_code) == ("no such file", 7)


def test_a_model_that_is_lost_later_leaves_the_others(service) -> None:
    serve_all(service)
    first, second = service._models
    second.replicas.serving.clear()
    service.on_event("b", GaveUp("died", 1))
    assert service._failure is None
    first.replicas.serving.clear()
    service.on_event("a", GaveUp("died too", 1))
    assert str(service._failure) == "died too"


def test_engines_share_the_memory_of_the_machine(tmp_path: Path) -> None:
    assert options_of(tmp_path).configs()[0].replicas == 1
    assert [c.replicas for c in options_of(tmp_path, models=3).configs()] == [3]
    assert [c.replicas for c in options_of(tmp_path, models=3, replicas=2).configs()] == [6, 6]


def test_a_step_deadline_counts_for_the_gateway_and_for_the_gpu(tmp_path: Path) -> None:
    def limits(*words: str) -> list[float]:
        values = vars(build_parser().parse_args(["serve", *words]))
        engine = engine_options.engine_config(values, tmp_path, Environment(cache_dir=tmp_path))
        given = engine_options.engine_options(values, engine)
        link = Model(lone_model(given), print).add("0")
        deadlines = link._watch._deadlines  # pyright: ignore[reportAttributeAccessIssue]
        return [given.engine.step_limit_s, deadlines.step_s, deadlines.silence_s]

    assert limits() == [8.0, 120.0, 5.0]
    assert limits("--step-deadline", "30", "--engine-timeout", "7") == [30.0, 30.0, 7.0]


def configs(*words: str, cache_dir: Path) -> list[ModelConfig]:
    values = vars(build_parser().parse_args(["serve", *words]))
    asked = ServedModels(model=values["source"], **fields(ServedModels, values))
    return asked.configs(values, ProgressDisplay(), cache_dir)


def models_of(*words: str) -> list[tuple[tuple[str, ...], Path]]:
    models = configs(*words, cache_dir=Path("cache"))
    return [(model.names, model.model_dir) for model in models]


def test_models_of_the_command_line(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "a=b"
    for path in (one, two):
        path.mkdir()
        (path / "config.json").write_text("{}")
    assert models_of(str(one)) == [(("one",), one)]
    assert models_of(str(one), "--served-model-name", "x", "y") == [(("x", "y"), one)]
    assert models_of(str(one), "--model", f"big={two}") == [(("one",), one), (("big",), two)]
    assert models_of("--model", str(two), "--model", str(one)) == [(("a=b",), two), (("one",), one)]
    with pytest.raises(UsageError, match="write --model NAME=DIR"):
        models_of("--model", str(one), "--served-model-name", "x")


def test_an_alias_is_of_the_model_that_it_names(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    words = [f"--model=a={tmp_path}", f"--model=b={tmp_path}", "--alias", "x=b"]
    models = configs(*words, cache_dir=tmp_path)
    assert [model.aliases for model in models] == [(), (("x", "b"),)]
    with pytest.raises(UsageError, match="'c' is not served; served are a, b"):
        models_of(*words[:2], "--alias", "x=c")


def test_a_template_is_of_the_model_that_it_names(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")

    def templates(*words: str) -> list[Path | None]:
        models = configs(*words, cache_dir=tmp_path)
        return [model.chat_template for model in models]

    one, two = f"--model=a={tmp_path}", f"--model=b={tmp_path}"
    assert templates(one) == [None]
    assert templates(one, "--chat-template", "x.jinja") == [Path("x.jinja")]
    assert templates(one, two, "--chat-template", "b=x.jinja") == [None, Path("x.jinja")]
    with pytest.raises(UsageError, match="several models: write NAME=FILE; served are a, b"):
        templates(one, two, "--chat-template", "x.jinja")
    with pytest.raises(UsageError, match="'c' is not served"):
        templates(one, "--chat-template", "c=x.jinja")


def test_a_server_that_may_open_too_few_files_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (16, 16))
    with pytest.raises(UsageError, match="may open 16 files, and a server needs at least 256"):
        raise_file_limit()
    monkeypatch.setattr("resource.getrlimit", lambda _: (16, 1024))
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr("resource.setrlimit", lambda _, limits: asked.append(limits))
    raise_file_limit()
    assert asked == [(1024, 1024)]


def test_a_draft_model_has_a_line_of_its_own(service, capsys) -> None:
    sizes = {"architecture": "llama", "dtype": "bf16", "weights_bytes": 2 * 10**6, "device": "CPU"}
    draft = Loading(parameters=10**6, **sizes)
    service.on_event("a", Loading(parameters=2 * 10**6, draft=draft, **sizes))
    serve_all(service)
    said = capsys.readouterr().err.splitlines()
    assert said[1] == "draft    llama, 1 million parameters, bf16, 2.0 MB"


def test_the_lines_of_a_start(service, capsys) -> None:
    loading = Loading(
        architecture="llama",
        parameters=1_040_000_000,
        dtype="bf16",
        weights_bytes=2 * 10**9,
        device="CPU",
    )
    for _ in range(2):  # as of two replicas
        service.on_event("a", loading)
    serve_all(service)
    said = capsys.readouterr().err.splitlines()
    assert said[:3] == [
        "model    a: llama, 1.04 billion parameters, bf16, 2.00 GB",
        "backend  CPU",
        "memory   context 2,048 tokens; KV cache 1,024 tokens in 3.0 MB; loaded in 0.10 s",
    ]
    assert re.fullmatch(
        r"serving  a, b at http://127.0.0.1:1 after [\d.]+ s; needs no key; Ctrl-C ends it", said[4]
    )
    assert len(said) == 5


def test_the_line_of_memory_tells_of_recurrent_states() -> None:
    sizes: Any = {"max_num_seqs": 8, "num_snapshots": 30, "states_bytes": 38 * 64 * 10**6}
    ready: Any = msgspec.structs.replace(READY, **sizes)
    assert states_text(ready) == "; states of 8 sequences and 30 snapshots in 2.43 GB"
    assert states_text(READY) == ""


def test_the_line_of_an_engine_tells_where_it_gives_pages() -> None:
    apart: Any = SimpleNamespace(role="decode", pages_address="10.0.0.1:5600")
    alike: Any = SimpleNamespace(role="both", pages_address="10.0.0.1:5600")
    alone: Any = SimpleNamespace(role="both", pages_address="")
    texts = [role_text(ready) for ready in (apart, alike, alone)]
    assert texts == ["; for decode; pages at 10.0.0.1:5600", "; pages at 10.0.0.1:5600", ""]


def test_a_cache_of_another_dtype_is_named() -> None:
    ready: Any = msgspec.structs.replace(READY, kv_cache_dtype="int8")
    assert cache_text(READY) == "KV cache 1,024 tokens in 3.0 MB"
    assert cache_text(ready) == "KV cache 1,024 tokens in 3.0 MB of int8"


def test_products_of_rounded_inputs_are_told() -> None:
    ready: Any = msgspec.structs.replace(READY, activation_dtype="int8")
    assert products_text(READY) == ""
    assert products_text(ready) == "products of int8 activations; "


def model(tmp_path: Path, name: str = "m") -> ModelConfig:
    return ModelConfig(model_dir=tmp_path, names=(name,))


@pytest.mark.parametrize(
    ("port", "place"), [("8000", "model-m"), ("8001", "model-m@8001"), ("0", "model-m@0")]
)
def test_servers_of_one_name_keep_their_files_apart(tmp_path: Path, port: str, place: str) -> None:
    values = vars(build_parser().parse_args(["serve", "--port", port]))
    config = gateway_options.gateway_config(values, [model(tmp_path)], tmp_path, "m")
    assert config.data_dir == tmp_path / "data" / place
    assert config.run_dir == tmp_path / "run"


@pytest.mark.parametrize(
    ("words", "models", "waits"),
    [([], 1, True), ([], 2, False), (["--wait"], 2, True), (["--no-wait"], 1, False)],
)
def test_a_lone_model_is_waited_for(tmp_path: Path, words: list[str], models: int, waits: bool) -> None:
    values = vars(build_parser().parse_args(["serve", *words]))
    named = [model(tmp_path, str(i)) for i in range(models)]
    assert gateway_options.gateway_config(values, named, tmp_path, "m").wait is waits
