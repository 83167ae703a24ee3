"""Devices by name, and this machine's own description."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from firelane.cli import main
from firelane.doctor.limits import Limits
from firelane.doctor.report import describe_machine, save_machine
from firelane.errors import MachineError, UsageError
from firelane.plan.devices import find_devices, find_kernels, known_devices, saved_path, to_toml
from tests.doctor.test_report import LIMITS, healthy_report


def test_each_description_is_sound(tmp_path: Path) -> None:
    for name, device in known_devices(tmp_path).items():
        assert device.name == name
        assert device.source
        assert min(device.memory_mib, device.read_gbps, device.tflops, device.link_gbps) > 0
        kernels = device.kernels
        shares = (kernels.stream, kernels.products, kernels.products_few, kernels.experts, kernels.kv_stream)
        assert all(0 < share <= 1 for share in shares)
        assert bool(device.cores) is not kernels.on_gpu


@pytest.mark.parametrize(
    ("text", "name", "count"),
    [("h100", "h100", 1), ("h100:8", "h100", 8), ("rtx4090:1", "rtx4090", 1)],
)
def test_names_and_numbers(tmp_path: Path, text: str, name: str, count: int) -> None:
    device, found = find_devices(text, tmp_path)
    assert (device.name, found) == (name, count)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("h300", "--device h300: unknown; there are a100, b200, cpu, epyc-9654, h100,"),
        ("h100:0", "--device h100:0: give the number of devices behind the colon, as in h100:2"),
        ("h100:", "--device h100:: give the number"),
        ("h100:two", "--device h100:two: give the number"),
        ("h100:99999", "--device h100:99999: give the number"),
        ("", "--device : unknown"),
        ("cpu", "--device cpu: this machine is not measured yet; run `firelane doctor --save` first"),
    ],
)
def test_others_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_devices(text, tmp_path)
    assert str(caught.value).startswith(message)


def test_kernels_take_the_rest_from_others() -> None:
    own, base = find_kernels("avx2"), find_kernels("avx512bf16")
    assert own.stream != base.stream
    assert (own.op_us, own.block_size) == (base.op_us, base.block_size)


def test_a_saved_machine_is_found_again(tmp_path: Path) -> None:
    path = save_machine(healthy_report(), tmp_path)
    assert path == saved_path(tmp_path)
    device, count = find_devices("cpu", tmp_path)
    assert count == 1
    assert device.read_gbps == LIMITS.read_gbps
    assert device.tflops == LIMITS.dot_gflops / 1e3
    assert device.kernels.name == "avx512bf16"
    assert device.memory_mib == 8 << 10


def test_without_a_dot_product_multiply_adds_count() -> None:
    limits = replace(LIMITS, dot_gflops=0.0)
    device = describe_machine(limits, isa="avx2", title="x", memory_bytes=1 << 30)
    assert device.tflops == LIMITS.fma_gflops / 1e3


def test_a_title_cannot_break_the_file(tmp_path: Path) -> None:
    device = describe_machine(LIMITS, isa="avx2", title='a "b"\\\n[c]', memory_bytes=1 << 30)
    path = saved_path(tmp_path)
    path.parent.mkdir()
    path.write_text(to_toml(device))
    assert find_devices("cpu", tmp_path)[0].read_gbps == device.read_gbps


@pytest.mark.parametrize(
    "text", ["", "[cpu]\n", "not toml", "[cpu]\nkernels = 'none'\n", "[cpu]\nkernels='avx2'\nx=1\n"]
)
def test_a_damaged_description_is_told(tmp_path: Path, text: str) -> None:
    path = saved_path(tmp_path)
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(UsageError, match="is no description of a device: run `firelane doctor --save`"):
        find_devices("cpu", tmp_path)


def test_an_unmeasured_machine_is_not_saved(tmp_path: Path) -> None:
    report = replace(healthy_report(), limits=None, problems=("no compiler",))
    with pytest.raises(MachineError, match="could not be measured: no compiler"):
        save_machine(report, tmp_path)


def test_doctor_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FIRELANE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("firelane.doctor.report.measure_limits", lambda _: LIMITS)
    assert main(["doctor", "--save"]) == 0
    assert f"saved as {saved_path(tmp_path)}" in capsys.readouterr().err
    assert isinstance(LIMITS, Limits)
    assert find_devices("cpu", tmp_path)[0].read_gbps == LIMITS.read_gbps
