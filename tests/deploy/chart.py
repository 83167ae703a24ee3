"""The chart as Helm renders it: Helm's own code, in a process of its own, as it brings another runtime."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

IS_THERE = importlib.util.find_spec("helm_python") is not None
RELEASE = "mine"


class ChartError(Exception):
    """Helm's words for values that it refuses."""


def linted(root: Path, values: dict[str, Any]) -> list[str]:
    """Warnings and errors of Helm's linter for the chart with these values."""
    said = _asked(root, values)
    return [f"{one['path']}: {one['error']}" for one in said["messages"] if one["severity"] > 1]


def rendered(root: Path, **values: Any) -> dict[tuple[str, str], dict[str, Any]]:
    """Manifests by kind and name, of a release `mine`. Raises ChartError."""
    said = _asked(root, values)
    if said["refusal"]:
        raise ChartError(said["refusal"])
    files = [text for name, text in said["files"].items() if name.endswith(".yaml")]
    made = [one for text in files for one in yaml.safe_load_all(text) if one]
    found = {(one["kind"], one["metadata"]["name"]): one for one in made}
    assert len(found) == len(made)
    return found


def _asked(root: Path, values: dict[str, Any]) -> dict[str, Any]:
    words = [sys.executable, __file__, str(root)]
    done = subprocess.run(words, input=json.dumps(values), capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def _answers(root: str, values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    helm: Any = importlib.import_module("helm_python")
    yield "messages", helm.lint(root, values, strict=True)["messages"]
    try:
        with helm.Chart.load(root) as chart:
            yield "files", chart.render(values, name=RELEASE)
        yield "refusal", ""
    except helm.HelmError as error:
        yield "refusal", str(error)


if __name__ == "__main__":
    print(json.dumps(dict(_answers(sys.argv[1], json.load(sys.stdin)))))
