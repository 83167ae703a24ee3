"""The command that plans: table, JSON, plot, choices, and one line for what cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from firelane.cli import build_parser, main
from firelane.cli import plan as command
from firelane.engine_config import KV_CACHE_DTYPES
from firelane.plan import estimate, forms
from tests.plan.published import LLAMA_8B, SCOUT

REPLICAS = "--replicas 2 --weights int4 --backend cpu --max-num-seqs 64"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIRELANE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def written(directory: Path, config: dict[str, Any]) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    return directory


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    """A directory with a config alone."""
    return written(tmp_path / "llama", LLAMA_8B)


@pytest.fixture
def scout(tmp_path: Path) -> Path:
    return written(tmp_path / "scout", SCOUT)


def rows(text: str) -> list[list[str]]:
    return [line.split("  ") for line in text.splitlines()[3:]]


def test_table(llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(llama), "--device", "h100:2", "--batch", "16", "--context", "2048"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "llama: 8.03 B parameters, at most 131072 tokens"
    assert lines[1] == "2 x NVIDIA H100 SXM, 80 GB, of 79.6 GiB each"
    assert lines[2] == "decoding 16 x 2048 tokens; GiB are of the fullest device"
    assert lines[3].split()[:3] == ["layout", "weights", "buffers"]
    assert [line.split("   ")[0] for line in lines[4:]] == ["dp 2", "pp 2", "tp 2"]


def test_config_json_by_its_own_name(llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(llama / "config.json"), "--device", "h200"]) == 0
    assert "one device" in capsys.readouterr().out


def test_the_embedded_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--device", "rtx4090"]) == 0
    assert capsys.readouterr().out.startswith("llama: 5.48 M parameters")


def test_sweeps_have_a_column_each(llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [
        "--weights",
        "bf16,int4",
        "--kv-cache-dtype",
        "bf16,fp8",
        "--batch",
        "1,8",
        "--context",
        "512,4096",
    ]
    assert main(["plan", str(llama), "--device", "h100", *options]) == 0
    lines = capsys.readouterr().out.splitlines()[3:]
    assert lines[0].split()[:5] == ["weights", "KV", "batch", "context", "layout"]
    assert len({tuple(line.split()[:4]) for line in lines[1:]}) == len(lines) - 1 == 16


def test_a_full_server(llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(llama), "--device", "h100-nvl", "--batch", "200", "--output", "200"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("decoding 200 x 1024 + 200 tokens")
    assert lines[3].endswith("requests/s  output tok/s")
    assert float(lines[4].split()[-2]) > 10


def test_json_has_all_figures(scout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(scout), "--device", "h200:2", "--weights", "bf16", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["model"], found["devices"], found["device"]["name"]) == ("llama4", 2, "h200")
    layouts = {(e["layout"]["tp"], e["layout"]["dp"], e["layout"]["ep"]): e for e in found["layouts"]}
    assert layouts[1, 2, 1]["problem"].endswith("GiB too little for the weights")
    whole = layouts[2, 1, 2]
    assert whole["room"]["one"] > 1_200_000
    assert whole["ranks"][0]["weights"] * 2 == pytest.approx(whole["weights_bytes"], rel=1e-6)
    assert whole["tokens_per_s"] * whole["decode_s"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("options", "ending"),
    [
        ("latency --device epyc-9654:2", "--tensor-parallel-size 2 --backend cpu"),
        ("throughput --device ryzen-7950x:2 --batch 64 --weights int4 --tp 1 --pp 1", REPLICAS),
        ("context --device h100 --weights bf16", "--weights bf16 --backend cuda"),
        ("latency --device ryzen-7950x", "--backend cpu"),
    ],
)
def test_the_best_layout_is_told_with_its_command(
    llama: Path, capsys: pytest.CaptureFixture[str], options: str, ending: str
) -> None:
    assert main(["plan", str(llama), "--best-for", *options.split()]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    assert lines[-1] == f"firelane serve {llama} {ending}"


@pytest.mark.parametrize(
    ("options", "ending", "said"),
    [
        ("--device h100 --kv-cache-dtype fp8", "--kv-cache-dtype fp8 --backend cuda", "--kv-cache-dtype fp8"),
        ("--device rtx4090:2 --dp 2", "--replicas 2 --backend cuda", "2 engines on one GPU"),
        (
            "--device h200:8 --tp 2 --dp 4 --ep 8",
            "--tensor-parallel-size 2 --data-parallel-size 4 --expert-parallel-size 8 --backend cuda",
            "it has no option --data-parallel-size",
        ),
    ],
)
def test_commands_that_serve_refuses_are_marked(
    llama: Path, scout: Path, capsys: pytest.CaptureFixture[str], options: str, ending: str, said: str
) -> None:
    model = scout if "--ep" in options else llama
    words = ["plan", str(model), "--best-for", "context", *options.split()]
    assert main(words) == 0
    line, mark = capsys.readouterr().out.splitlines()[-2:]
    assert line == f"firelane serve {model} {ending}"
    assert mark.startswith(f"# not served yet: {said}")
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["refused"].startswith(said)


def test_a_layout_that_is_served_comes_first(llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Though one that is not were better."""
    options = ["--device", "h100", "--kv-cache-dtype", "fp8,bf16", "--best-for", "context"]
    assert main(["plan", str(llama), *options]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("--kv-cache-dtype bf16 --backend cuda")


def test_commands_of_one_device_are_serves_own(llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--device", "h100", "--weights", "bf16", "--batch", "8", "--best-for", "throughput"]
    assert main(["plan", str(llama), *options, "--json"]) == 0
    served = json.loads(capsys.readouterr().out)["command"].split()[1:]
    assert build_parser().parse_args(served).max_num_seqs == 8


def test_a_form_that_has_to_be_made_first(llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--device", "rtx4090", "--weights", "fp8", "--best-for", "latency"]
    assert main(["plan", str(llama), *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2] == f"firelane quantize {llama} {llama}-fp8 --format fp8"
    assert lines[-1] == f"firelane serve {llama}-fp8 --backend cuda"


def test_plot(scout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.svg"
    options = ["--device", "h200:2", "--weights", "bf16,int4", "--batch", "1,8,64"]
    assert main(["plan", str(scout), *options, "--plot", str(path)]) == 0
    assert capsys.readouterr().out
    root = ElementTree.parse(path).getroot()
    texts = [element.text for element in root.iter(f"{SVG}text")]
    assert texts[0] == "llama4 on NVIDIA H200 SXM, 141 GB"
    assert "tp 2, ep 2; bf16, KV auto" in texts
    assert "dp 2; bf16, KV auto" not in texts, "it does not fit"
    assert len(list(root.iter(f"{SVG}circle"))) == 3 * len(list(root.iter(f"{SVG}polyline")))
    for rectangle in root.iter(f"{SVG}rect"):
        assert float(rectangle.get("width", "-1")) >= 0


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ("h300", 2, "--device h300: unknown; there are a100, b200, cpu"),
        ("cpu", 2, "--device cpu: this machine is not measured yet"),
        ("h100:2 --tp 4", 2, "--tp 4: no such layout of 2 devices"),
        ("h100:2 --ep 2", 2, "--ep 2: no such layout of 2 devices"),
        ("h100:64 --tp 64", 2, "llama: 32 heads for 64 ranks"),
        ("rtx4090 --weights bf16 --context 100000", 1, "llama with bf16 weights does not fit 1 x rtx4090"),
        ("h100 --max-model-len 131073", 2, "--max-model-len 131073: the model takes 131072 tokens"),
        ("h100 --context 131000 --output 100", 2, "--context 131100: the model takes 131072 tokens"),
    ],
)
def test_what_cannot_be_is_told_in_a_line(
    llama: Path, capsys: pytest.CaptureFixture[str], options: str, code: int, message: str
) -> None:
    assert main(["plan", str(llama), "--device", *options.split()]) == code
    found = capsys.readouterr()
    assert found.err.startswith(f"firelane: error: {message}")
    assert (found.err.count("\n"), found.out) == (1, "")


@pytest.mark.parametrize(
    "options",
    [
        ["--weights", "fp3"],
        ["--weights", ""],
        ["--batch", "0"],
        ["--batch", "1,,2"],
        ["--kv-cache-dtype", "f8"],
        ["--tp", "x"],
    ],
)
def test_options_are_checked(capsys: pytest.CaptureFixture[str], options: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["plan", "--device", "h100", *options])
    assert caught.value.code == 2
    assert "argument" in capsys.readouterr().err


def test_a_plan_without_a_device_is_of_this_machine(
    llama: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIRELANE_CACHE_DIR", str(tmp_path / "of a machine that nobody has measured"))
    assert main(["plan", str(llama)]) != 0
    assert "firelane doctor --save" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("/no/such/model", "/no/such/model: no such directory"),
        ("nobody/none", "nobody/none: no such directory, not in the hub's cache"),
        ("nobody/none:Q4_K_M", "nobody/none:Q4_K_M: a plan reads a GGUF file's header"),
    ],
)
def test_models_that_are_not_there(capsys: pytest.CaptureFixture[str], model: str, message: str) -> None:
    assert main(["plan", model, "--device", "h100"]) == 1
    assert capsys.readouterr().err.startswith(f"firelane: error: {message}")


def test_unknown_families_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = written(tmp_path / "odd", {"architectures": ["OddForCausalLM"]})
    assert main(["plan", str(model), "--device", "h100"]) == 1
    assert "architecture 'OddForCausalLM' is not supported" in capsys.readouterr().err


def test_choices_are_those_of_the_plan() -> None:
    assert ("auto", *forms.FORMS) == command.WEIGHTS
    assert command.KV_DTYPES == KV_CACHE_DTYPES
    assert command.BEST_FOR == estimate.BEST_FOR
