"""Devices as data: what a model may run on, its limits, and what kernels reach of them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from firelane.errors import UsageError

HERE = Path(__file__).parent
SAVED = "cpu"
"""The name of this machine, as the doctor has measured it."""
MOST_DEVICES = 1024
MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Kernels:
    """Shares of a device's limits that kernels reach, and what an engine takes beside; see kernels.toml."""

    name: str
    stream: float
    few_rows: int
    products_few: float
    products: float
    experts: float
    kv_stream: float
    kv_byte_flops: float
    score_flops: float
    recurrent: float
    rows_stream: float
    op_us: float
    step_us: float
    runtime_mib: float
    ranks_mib: float
    reserve_mib: float
    kv_part: float
    step_tokens: int
    block_size: int
    start_s: float

    @property
    def on_gpu(self) -> bool:
        return self.name == "cuda"


@dataclass(frozen=True, kw_only=True)
class DeviceSpec:
    """One GPU, or one machine with its CPU; see devices.toml."""

    name: str
    title: str
    kernels: Kernels
    memory_mib: float
    read_gbps: float
    tflops: float
    link_gbps: float
    link_us: float
    host_gbps: float
    source: str
    cores: int = 0

    @property
    def memory_bytes(self) -> int:
        return int(self.memory_mib * MIB)


def find_devices(text: str, cache_dir: Path) -> tuple[DeviceSpec, int]:
    """The device and their number that `h100:8` or `rtx4090` names. Raises UsageError, listing those that are
    known."""
    name, colon, number = text.partition(":")
    known = known_devices(cache_dir)
    if name == SAVED and SAVED not in known:
        raise UsageError("--device cpu: this machine is not measured yet; run `firelane doctor --save` first")
    if name not in known:
        raise UsageError(f"--device {text}: unknown; there are {', '.join(sorted({SAVED, *known}))}")
    if colon and (not number.isdecimal() or not 0 < int(number) <= MOST_DEVICES):
        raise UsageError(f"--device {text}: give the number of devices behind the colon, as in {name}:2")
    return known[name], int(number) if colon else 1


def known_devices(cache_dir: Path) -> dict[str, DeviceSpec]:
    """By name: those of the package, and this machine if it was measured."""
    tables = _read(HERE / "devices.toml")
    found = {name: make_device(name, table) for name, table in tables.items()}
    saved = saved_path(cache_dir)
    if saved.is_file():
        found[SAVED] = _saved(saved)
    return found


def make_device(name: str, table: Mapping[str, Any]) -> DeviceSpec:
    """The device that a table like those of devices.toml describes. Raises KeyError or TypeError for a table
    that describes none."""
    others: dict[str, Any] = {key: value for key, value in table.items() if key != "kernels"}
    return DeviceSpec(name=name, kernels=find_kernels(str(table["kernels"])), **others)


def find_kernels(name: str) -> Kernels:
    tables = _read(HERE / "kernels.toml")
    found: dict[str, Any] = {}
    like = name
    while like:
        table = dict(tables[like])
        like = str(table.pop("like", ""))
        found = {**table, **found}
    return Kernels(name=name, **found)


def saved_path(cache_dir: Path) -> Path:
    """Path to which the doctor writes the description of this machine."""
    return cache_dir / "devices" / f"{SAVED}.toml"


def to_toml(device: DeviceSpec) -> str:
    """A description as a file that known_devices() reads."""
    table = {f.name: getattr(device, f.name) for f in fields(device) if f.name not in ("name", "kernels")}
    rows = [f"{key} = {_literal(value)}" for key, value in {**table, "kernels": device.kernels.name}.items()]
    return "\n".join([f"[{device.name}]", *rows, ""])


def _literal(value: object) -> str:
    if isinstance(value, str):
        plain = "".join(c if c.isprintable() and c not in '"\\' else " " for c in value)
        return f'"{plain}"'
    return str(value)


def _saved(path: Path) -> DeviceSpec:
    try:
        return make_device(SAVED, _read(path)[SAVED])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path}: is no description of a device: run `firelane doctor --save`") from error


def _read(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))
