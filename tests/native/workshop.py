"""A fake compiler, which is a script that counts its runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from firelane.native.toolchain import Toolchain


@dataclass(frozen=True, kw_only=True)
class Workshop:
    """A fake compiler that copies its source to its output, and a cache directory."""

    root: Path

    @property
    def runs(self) -> int:
        log = self.root / "runs"
        return len(log.read_text().splitlines()) if log.exists() else 0

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    def compiler(self, script: str = "") -> Toolchain:
        path = self.root / "cxx"
        copy = f'echo run >> {self.root}/runs\nwhile [ "$1" != -o ]; do src=$1; shift; done\ncp "$src" "$2"\n'
        path.write_text(
            f'#!/bin/sh\ncase "$*" in *--version) echo "fake 1.0"; exit 0;; esac\n{script}\n{copy}'
        )
        path.chmod(0o755)
        return Toolchain(command=(str(path),), version="fake 1.0")

    def build(self, tool: Toolchain, source: str = "int x;", **changes: object) -> Path:
        settings = {
            "include_dirs": [],
            "flags": ["-O1"],
            "cpu_key": "cpu",
            "cache_dir": self.cache,
            "name": "it",
        }
        return tool.build(source, **{**settings, **changes})  # type: ignore[arg-type]
