"""Fixtures and hooks that all tests share: they choose where compiled kernels are kept, whether CUDA kernels
are interpreted or run, how property tests draw, and the order of tests."""

from __future__ import annotations

import gc
import os
import random
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import certifi
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.configuration import set_hypothesis_home_dir

from tests import sweep

CERTIFICATE = Path(__file__).parent / "gateway" / "certificates" / "one.pem"
REAL = Path(__file__).parent / "real"

# Each worker has a directory of its own: one would read what another is about to replace.
set_hypothesis_home_dir(
    Path(__file__).parents[1] / ".hypothesis" / os.environ.get("PYTEST_XDIST_WORKER", "one")
)
# The same examples each time, so that a change breaks the tests or does not. `--hypothesis-profile explore`
# draws others; what it finds becomes an @example.
HERE = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", HERE)
settings.register_profile("same", HERE, derandomize=True)
settings.load_profile("same")

# Triton decides when it is imported whether kernels are interpreted or compiled, and other tests' libraries
# (transformers) import it, too: so it must be said before any test module is. TRITON_INTERPRET=0 runs the
# tests of kernels, and those marked gpu, on the machine's GPU.
if os.environ.setdefault("TRITON_INTERPRET", "1") == "1":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # servers that tests start take the CPU on every machine

# Modules are compiled once, not by each of the hundreds of processes that tests start.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", metavar="SEED", help="run the tests in a random order, that of SEED")
    parser.addoption(
        "--sweep",
        nargs="?",
        const="all",
        choices=("all", "rest"),
        help="take the tests, too, that a run of all leaves out (tests/sweep.py); rest: those alone",
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None]:
    """Collection without garbage collection: what it makes, millions of objects, lives until the end, and is
    not looked through later either."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Tests over published artefacts are not even imported by a run that does not name them."""
    return True if collection_path == REAL and "real" not in config.option.markexpr else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests that this run is not for. Tests marked gpu are for a process without interpreter, on
    a machine that has one; those marked arm or real for a run that names them; the sweep is for --sweep."""
    left_out = set(sweep.left_out_of(config, items))
    if config.getoption("--shuffle") is not None:
        random.Random(config.getoption("--shuffle")).shuffle(items)
    needs_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if needs_gpu and not _gpu_is_used():
        left_out.update(needs_gpu)
    for mark in ("arm", "real"):
        if mark not in config.option.markexpr:
            left_out.update(item for item in items if item.get_closest_marker(mark))
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


def _gpu_is_used() -> bool:
    if os.environ["TRITON_INTERPRET"] == "1":
        return False
    import torch

    return torch.cuda.is_available()


@pytest.fixture(scope="session", autouse=True)
def _one_certificate() -> Iterator[None]:
    """HTTP clients read one certificate in place of the world's: that takes longer than most requests, and
    no test asks another host."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certifi, "where", lambda: str(CERTIFICATE))
        yield


@pytest.fixture(scope="session")
def kernel_cache(pytestconfig: pytest.Config) -> Iterator[Path]:
    """Compiled CPU kernels are kept in pytest's cache directory: a second run does not compile them again.
    They are compiled whole: two parts would read all headers twice, and each core has tests of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("firelane.backends.cpu.codegen.compile.PARTS", 1)
        yield Path(pytestconfig.cache.mkdir("firelane-kernels"))


@pytest.fixture(scope="module")
def unoptimised() -> Iterator[None]:
    """Kernels of tiny models compiled in the shortest time, for tests that compare models, not kernels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("firelane.backends.cpu.codegen.compile.QUICK_FLAGS", ("-O0",))
        yield


@pytest.fixture(scope="session")
def cache_dir(kernel_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A worker's own cache directory, for processes that it starts; its kernels are those of all workers."""
    directory = tmp_path_factory.mktemp("firelane-cache")
    (kernel_cache / "kernels").mkdir(exist_ok=True)
    (directory / "kernels").symlink_to(kernel_cache / "kernels")
    return directory
