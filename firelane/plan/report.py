"""Plans as JSON, and one line on what would fit where nothing does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import msgspec

from firelane.errors import OutOfMemoryError, UsageError
from firelane.plan.devices import DeviceSpec
from firelane.plan.estimate import GIB, Estimate, PlanSetup, estimate_all
from firelane.plan.forms import FORMS, plain_form
from firelane.plan.layout import layouts
from firelane.plan.table import parameters

MOST_DEVICES = 64


def as_json(
    setup: PlanSetup, count: int, estimates: Sequence[Estimate], command: str = "", refused: str = ""
) -> str:
    """All figures in bytes and seconds. command: serves the only estimate; refused: what `firelane serve`
    says to it where it does not take it."""
    plan: dict[str, Any] = {
        "model": setup.model.program.name,
        "parameters": parameters(setup.model.program),
        "device": _described(setup.device),
        "devices": count,
        "layouts": [_as_object(e) for e in estimates],
        **({"command": command} if command else {}),
        **({"refused": refused} if refused else {}),
    }
    return msgspec.json.format(msgspec.json.encode(plan), indent=2).decode()


def _described(device: DeviceSpec) -> dict[str, Any]:
    return {**asdict(device), "kernels": asdict(device.kernels)}


def _as_object(e: Estimate) -> dict[str, Any]:
    more = {
        "tokens_per_s": e.tokens_per_s,
        "prefill_tokens_per_s": e.prefill_tokens_per_s,
        "problem": e.problem,
    }
    return {**asdict(e), **more}


def fit_or_explain(setups: Sequence[PlanSetup], estimates: Sequence[Estimate], count: int) -> None:
    """Raises OutOfMemoryError where none of the estimates fits, with what would."""
    if any(not e.problem for e in estimates):
        return
    nearest = max(estimates, key=lambda e: e.fullest.left)
    device, workload = setups[0].device, nearest.workload
    need = nearest.fullest.taken / GIB
    would = [*_narrower(setups[0], nearest, count), *_larger(setups[0], nearest, count)]
    advice = "; these would fit: " + ", or ".join(would) if would else "; nothing that is known would fit"
    raise OutOfMemoryError(
        f"{setups[0].model.program.name} with {nearest.form} weights does not fit {count} x {device.name}: "
        f"at best ({nearest.layout}) a device of {device.memory_bytes / GIB:.1f} GiB needs {need:.1f} GiB "
        f"and room for {workload.context} tokens{advice}"
    )


def _narrower(setup: PlanSetup, nearest: Estimate, count: int) -> list[str]:
    """The widest narrower form that fits the same devices."""
    if nearest.form == "checkpoint":
        return []
    for form in sorted(FORMS, key=lambda name: -FORMS[name]):
        if FORMS[form] < FORMS[nearest.form]:
            narrow = replace(setup, model=replace(setup.model, form=plain_form(setup.model.program, form)))
            if _fits(narrow, nearest, count):
                return [f"--weights {form}"]
    return []


def _larger(setup: PlanSetup, nearest: Estimate, count: int) -> list[str]:
    """The fewest more devices, a power of two of times."""
    while (count := count * 2) <= MOST_DEVICES:
        if _fits(setup, nearest, count):
            return [f"--device {setup.device.name}:{count}"]
    return []


def _fits(setup: PlanSetup, nearest: Estimate, count: int) -> bool:
    try:
        found = estimate_all(setup, layouts(setup.model.program, count), [nearest.workload])
    except UsageError:
        return False
    return any(not e.problem for e in found)
