"""pull, cache list, rm, and a model that is served from a real S3 server."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from firelane import env
from firelane.cli import main
from firelane.errors import StoreError
from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from firelane.server.options.served_models import served_name
from firelane.sources.resolve import EMBEDDED, resolve
from firelane.weights.packing.loader import load_packed
from tests.stores.s3_server import Fault, S3Server, s3_server

URL = "s3://bucket/model"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    root = tmp_path_factory.mktemp("s3")
    shutil.copytree(EMBEDDED, root / "bucket" / "model")
    with s3_server(root) as running:
        yield running


@pytest.fixture
def cache(server: S3Server, cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, but for compiled kernels."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("FIRELANE_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "kernels").symlink_to(cache_dir / "kernels")
    server.proxy.faults.clear()
    server.proxy.always = None
    server.proxy.seen.clear()
    return tmp_path / "cache"


def generate() -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "firelane", "generate", URL, "--prompt", "def", "--max-tokens", "4"]
    command += ["--temperature", "0"]
    return subprocess.run(command, env=env.for_child(), capture_output=True, text=True, check=False)


def test_generate_pull_list_rm(server: S3Server, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Weights go from the store into packed ones; faults beside that are not seen; nothing else is kept."""
    server.proxy.faults += [Fault(status=503, code="SlowDown"), Fault(after=5_000, how="cut")]
    first = generate()
    assert first.returncode == 0, first.stderr
    assert first.stdout.strip()
    assert not list(cache.glob("models/*/*.safetensors"))
    server.proxy.always = Fault(status=500, code="InternalError")  # no weights are needed
    second = generate()
    assert (second.returncode, second.stdout) == (0, first.stdout), second.stderr
    server.proxy.always = None
    assert main(["pull", URL]) == 0
    assert len(list(cache.glob("models/*/*.safetensors"))) == 1
    capsys.readouterr()
    assert main(["cache", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-2:] for line in lines[1:-1]] in (
        [["weights", URL], ["model", URL]],
        [["model", URL], ["weights", URL]],
    )
    assert main(["rm", URL]) == 0
    assert "MB removed" in capsys.readouterr().out
    assert not list(cache.glob("models/*/")) + list(cache.glob("weights/*.weights"))


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (
            Fault(status=400, code="ExpiredToken"),
            r"the credentials have expired \(ExpiredToken\)",
        ),
        (Fault(how="replace"), "was replaced while it was read: start again"),
    ],
    ids=["expired", "replaced"],
)
def test_a_store_that_fails_while_weights_are_packed(
    server: S3Server, cache: Path, fault: Fault, says: str
) -> None:
    """One line, and nothing half-made is left under a final name."""
    directory = resolve(URL)
    program = load_program(read_config(directory))
    server.proxy.faults += [Fault()] * 20
    server.proxy.always = fault
    with pytest.raises(StoreError, match=rf"^{URL}/model\.safetensors: {says}"):
        load_packed(program, directory, cache)
    assert not list(cache.glob("weights/*.weights")) + list(cache.glob("weights/*.tmp"))
    server.proxy.always = None
    load_packed(program, directory, cache).close()


def test_without_the_extra(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    del cache
    for name in ("obstore", "obstore.store"):
        monkeypatch.setitem(sys.modules, name, None)
    assert main(["pull", URL]) == 1
    assert "needs an extra: pip install 'firelane[object-store]'" in capsys.readouterr().err


def test_rm_of_what_is_not_there(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    del cache
    assert main(["rm", "s3://bucket/nothing"]) == 1
    assert "nothing of it is in the cache" in capsys.readouterr().err


def test_names_of_served_models() -> None:
    assert served_name("s3://bucket/models/llama-1b/") == "llama-1b"
    assert served_name("https://host/x/llama.Q4_K_M.gguf") == "llama.Q4_K_M"
