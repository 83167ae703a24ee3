"""The scripts under benchmarks/: the parts that compute, and that each one starts."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

SCRIPTS = Path(__file__).parents[2] / "benchmarks"
MINE = (
    "run_offline_vs_peers",
    "turns_vs_peers",
    "targets_vs_llamacpp",
    "start_times",
    "memory",
    "lossless",
    "expert_model",
    "families_plot",
    "plan_vs_measured",
    "object_store",
)


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclass looks up the module of a class by name
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", MINE)
def test_help(name: str) -> None:
    command = [sys.executable, str(SCRIPTS / f"{name}.py"), "--help"]
    environ = {**os.environ, "PYTHONPATH": str(SCRIPTS.parent)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environ)
    assert "usage" in done.stdout


def test_ratio_is_to_the_best_peer() -> None:
    ours = {
        "limits": {"read_gbps": 40.0, "dot_gflops": 1000.0, "fma_gflops": 500.0},
        "workloads": [
            {"name": "decode-1", "tokens_per_s": 21.0, "gbps": 38.0, "gflops": 50.0},
            {"name": "long-decode-6000", "tokens_per_s": 9.0, "gbps": 20.0, "gflops": 50.0},
        ],
    }
    peers = {"a": {"decode-1": 20.0}, "b": {"decode-1": 10.5}}
    lines = load("run_offline_vs_peers").compare(ours, peers).splitlines()
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in lines]
    assert cells[2] == ["decode-1", "21.0", "20.0", "10.5", "1.05x", "95%", "5%"]
    assert cells[3] == ["long-decode-6000", "9.0", "-", "-", "-", "50%", "5%"]


def test_turns_compare_rounds_that_lie_beside_each_other() -> None:
    script = load("turns_vs_peers")
    seconds = {"firelane": [2.0, 4.0, 1.0], "a": [3.0, 4.0, 2.0], "b": [9.0, 3.0, 9.0]}
    times = {name: seconds for name in script.WORKLOADS} | {
        "long-prefill-6000": {"firelane": [10.0], "a": [20.0], "b": [30.0]},
        "long-6000-and-129": {"firelane": [12.0], "a": [24.0], "b": [40.0]},
    }
    assert script.rates(times, "firelane")["decode-8"] == 8 * 64 / 1.0
    assert script.rates(times, "a")["long-decode-6000"] == 128 / 4.0
    lines = script.report(times, ["firelane", "a", "b"]).splitlines()
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in lines]
    assert cells[2] == ["decode-1", "64.0", "32.0", "21.3", "a", "2.00x", "1.50x"]
    assert cells[-1] == ["long-decode-6000", "64.0", "32.0", "12.8", "a", "2.00x", "2.00x"]


SMAPS = """\
7f0000000000-7f0000a00000 r--s 00000000 fe:00 12 /cache/weights/ab.weights
Size:              10240 kB
Rss:                8192 kB
7f0001000000-7f0001100000 r-xp 00000000 fe:00 13 /cache/kernels/ab.so
Size:               1024 kB
Rss:                 512 kB
7f0002000000-7f0006000000 rw-p 00000000 00:00 0 \n\
Size:              65536 kB
Rss:               32768 kB
00400000-00500000 rw-p 00000000 00:00 0                          [heap]
Size:               1024 kB
Rss:                1000 kB
"""


def test_memory_is_split_into_weights_cache_and_rest() -> None:
    memory = load("memory")
    mappings = memory.read_mappings(SMAPS)
    assert len(mappings) == 4
    weights, kv, rest = memory.split_engine(mappings, Path("/cache"), 64 << 20)
    assert (weights >> 10, kv >> 10, rest >> 10) == (8192, 32768, 1512)


def test_report_of_a_target_has_the_median_of_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)
    script = load("targets_vs_llamacpp")
    times = {"decode-1": {"firelane": [4.0, 2.0, 4.0], "llamacpp": [4.0, 6.0, 8.0]}}
    row = next(line for line in script.report(times).splitlines() if "decode-1" in line)
    assert all(word in row for word in ("32.0", "16.0", "2.00x", "1.00 to 3.00"))


def test_a_model_with_experts_in_both_layouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = load("expert_model")
    small = {"hidden_size": 32, "moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2}
    small |= {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
    monkeypatch.setattr(script, "CONFIG", script.CONFIG | small | {"vocab_size": 64})
    script.write_checkpoint(tmp_path)
    found = {name: bits.shape for name, bits in script.gguf_tensors(tmp_path)}
    assert found["blk.0.ffn_gate_exps.weight"] == found["blk.0.ffn_up_exps.weight"] == (4, 16, 32)
    assert found["blk.0.ffn_down_exps.weight"] == (4, 32, 16)
    assert found["blk.0.ffn_gate_inp.weight"] == (4, 32)
    assert found["token_embd.weight"] == found["output.weight"] == (64, 32)
    assert len(found) == 15


PAGE = """# Families
## Dense
| shape | weights | GB a step | decode 1, tok/s | decode 1 of bandwidth | prefill 512 of peak |
|---|---|---:|---:|---:|---:|
| `a<b` | bf16 | 1.0 | 40.0 | 80% | 79% |
## Experts
| step | weights | tok/s, median | of the bandwidth, median |
|---|---|---:|---:|
| decode 1 | 12 bits | 30 | 60% |
| decode 8 | 12 bits | 90 | 70% |

| other | ratio |
|---|---|
| x | 2 |
## Recurrent
| context | ms, median | of bandwidth |
|---:|---:|---:|
| 1000 | 20.0 | 50% |
"""


def test_the_plot_of_families_takes_what_the_page_says() -> None:
    script = load("families_plot")
    found = [(f.label, f.rate, round(f.limit, 6)) for f in script.figures(PAGE)]
    assert found == [
        ("a<b, bf16", 40.0, 50.0),
        ("Experts, 12 bits", 30.0, 50.0),
        ("Recurrent, 1000 tokens", 50.0, 100.0),
    ]
    root = ElementTree.fromstring(script.drawn(script.figures(PAGE)))
    bars = [float(bar.attrib["width"]) for bar in root.iter("{http://www.w3.org/2000/svg}rect")][1:]
    assert bars == [230.0, 184.0, 230.0, 138.0, 460.0, 230.0]


def test_the_plot_of_the_published_page_is_up_to_date() -> None:
    script = load("families_plot")
    page = script.PAGE.read_text(encoding="utf-8")
    assert script.PAGE.with_suffix(".svg").read_text(encoding="utf-8") == script.drawn(script.figures(page))
