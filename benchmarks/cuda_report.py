"""Tables of the GPU benchmarks, and what they were measured under. Needs torch, and nothing of the base
install but NumPy."""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from firelane import __version__
from firelane.backends.cuda.device import gpu_detection
from firelane.bench.table import format_table
from firelane.errors import FirelaneError

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


@dataclass(frozen=True, kw_only=True)
class Conditions:
    device: str
    driver: str
    torch: str
    triton: str
    python: str
    firelane: str
    date: str

    @classmethod
    def now(cls) -> Conditions:
        """Read the conditions of this machine. Raises MachineError, UsageError where no GPU can be used."""
        found = gpu_detection.detect()
        gpu = gpu_detection.require(found)
        return cls(
            device=str(gpu),
            driver=f"{found.driver} (CUDA {gpu_detection.dotted(found.driver_cuda)})",
            torch=f"{found.packages.torch} (CUDA {found.packages.torch_cuda})",
            triton=found.packages.triton,
            python=platform.python_version(),
            firelane=f"{__version__} {_commit()}".strip(),
            date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        )

    def __str__(self) -> str:
        return (
            f"{self.device}; driver {self.driver}; torch {self.torch}, Triton {self.triton}, "
            f"Python {self.python}; Firelane {self.firelane}; {self.date}"
        )


def _commit() -> str:
    """Short hash of the checkout, "" where it is none."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


@dataclass(frozen=True, kw_only=True)
class Table:
    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()

    def __str__(self) -> str:
        parts = [f"## {self.title}", format_table(self.header, self.rows), *self.notes]
        return "\n\n".join(parts)


def publish(name: str, tables: Sequence[Table], figures: Any, arguments: argparse.Namespace) -> None:
    """Print the tables, and write them and the figures (a dataclass or a dict) into arguments.out as NAME.md
    and NAME.json."""
    conditions = Conditions.now()
    page = "\n\n".join([f"# {name}", str(conditions), *map(str, tables)]) + "\n"
    print(page, flush=True)
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.md").write_text(page)
    record = {
        "conditions": asdict(conditions),
        "figures": figures if isinstance(figures, dict) else asdict(figures),
    }
    (out / f"{name}.json").write_text(json.dumps(record, indent=1, default=str) + "\n")


def add_cache_dir(parser: argparse.ArgumentParser) -> None:
    """Add an option that names the folder of the table of benchmarks/cuda_tune.py."""
    parser.add_argument("--cache-dir", type=Path, metavar="DIR", help="of tuned products (default: by rule)")


def parser(text: str | None) -> argparse.ArgumentParser:
    """With what every GPU benchmark takes."""
    made = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--out", default=str(RESULTS), help="directory of the tables and figures")
    return made


def run_main(main: Any) -> None:
    """`main()`, and what stands in its way in one line."""
    try:
        main()
    except FirelaneError as error:
        raise SystemExit(f"{type(error).__name__}: {error}") from error


def percent(share: float) -> str:
    return f"{100 * share:.0f}%"
