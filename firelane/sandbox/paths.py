"""Files that an engine needs: programs and libraries of the system, Python, its compiler, its model, and its
part of the cache directory."""

from __future__ import annotations

import contextlib
import importlib.util
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import firelane
from firelane import env
from firelane.sandbox.landlock import IOCTL_DEV, READ, READ_DIR, RUN, WRITE, WRITE_FILE

SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt"),
    *("/nix/store", "/gnu/store", "/home/linuxbrew/.linuxbrew"),
)
SETTINGS = (
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives"),
    *("/etc/localtime", "/etc/timezone", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf"),
)
KERNEL = ("/proc", "/sys/devices", "/sys/fs/cgroup", "/sys/kernel/mm", "/sys/bus")
DEVICES = ("/dev/null", "/dev/zero", "/dev/full")
RANDOM = ("/dev/random", "/dev/urandom")
PYTHON_CACHE = "python"
KERNELS, ZIG_CACHE, ADAPTERS = "kernels", "zig", "adapters"
CACHES = ("weights", "estimates")
NETWORK = (
    *(
        "/etc/resolv.conf",
        "/etc/hosts",
        "/etc/host.conf",
        "/etc/gai.conf",
        "/etc/services",
        "/run/systemd/resolve",
    ),
    *("/etc/ssl", "/etc/pki", "/etc/ca-certificates"),
)
CREDENTIALS = (
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "AWS_CA_BUNDLE", "AWS_WEB_IDENTITY_TOKEN_FILE"),
    *(
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "AZURE_FEDERATED_TOKEN_FILE",
    ),
)
"""Variables with the names of files that clients of object stores read."""
FABRIC, FABRIC_SETTINGS = "/dev/infiniband", ("/sys/class", "/etc/libibverbs.d")
COMPILERS = ("g++", "clang++", "c++")
LAUNCHERS = ("ccache", "sccache", "distcc", "icecc")

Rule = tuple[Path, int]


def engine_rules(
    settings: env.Environment, cache_dir: Path, models: Sequence[Path], *, network: bool
) -> Iterator[Rule]:
    """Rules of what an engine may do with which files. models: directories that it reads. network: it reads
    from others, too. It only reads compiled kernels and modules: other processes run what lies there. Makes
    its caches."""
    yield from python_rules()
    for name in _compiler(settings):
        yield Path(name), RUN
    if network:
        for name in (*NETWORK, *env.paths_in(CREDENTIALS)):
            yield Path(name), READ
    for model in models:
        for path in model_files(model):
            yield path, READ
    for name in (KERNELS, PYTHON_CACHE):
        yield made(cache_dir, name), READ
    for name in CACHES:
        yield made(cache_dir, name), WRITE


def compiler_rules(settings: env.Environment, cache_dir: Path) -> Iterator[Rule]:
    """Rules of what the helper that compiles may do with which files. Makes its caches."""
    yield from python_rules()
    for name in _compiler(settings):
        yield Path(name), RUN
    has_zig = "zig" in settings.cxx or importlib.util.find_spec("ziglang") is not None
    for name in (KERNELS, ZIG_CACHE) if has_zig else (KERNELS,):
        yield made(cache_dir, name), WRITE


def bytecode_rules(cache_dir: Path) -> Iterator[Rule]:
    """Rules of the helper that compiles modules for engines. Makes its cache."""
    yield from python_rules()
    yield made(cache_dir, PYTHON_CACHE), WRITE


def python_rules() -> Iterator[Rule]:
    """Rules of any program in Python."""
    for name in (*SYSTEM, *_python()):
        yield Path(name), RUN
    for package in firelane.__path__:
        yield Path(package).parent, READ_DIR  # found there, in whatever directory the server was started
    for name in (*SETTINGS, *KERNEL, *RANDOM):
        yield Path(name), READ
    for name in DEVICES:
        yield Path(name), READ | WRITE_FILE


def fabric_rules() -> Iterator[Rule]:
    """Rules of a program that uses devices for remote memory (RDMA)."""
    for name in (*NETWORK, *FABRIC_SETTINGS):
        yield Path(name), READ
    yield Path(FABRIC), READ | WRITE_FILE | IOCTL_DEV


def model_files(model: Path) -> Iterator[Path]:
    """The directory, and files elsewhere that its links mean: a hub's cache keeps them apart."""
    yield model
    own = model.resolve()
    if own.is_dir():
        for entry in own.iterdir():
            meant = entry.resolve()
            if entry.is_symlink() and meant.is_file() and own not in meant.parents:
                yield meant


def compiler_launcher(settings: env.Environment) -> str | None:
    """The compiler, where it is a script or the front of a cache, which need files that nobody here knows;
    None otherwise."""
    found = _compiler_path(settings)
    if found is None:
        return None
    with found.open("rb") as file:
        is_script = file.read(2) == b"#!"
    is_front = any(name in (found.name, found.resolve().name) for name in LAUNCHERS)
    return str(found) if is_script or is_front else None


def _python() -> Iterator[str]:
    """Paths that Python runs and imports from, but for the directory that the server was started in."""
    yield from (sys.prefix, sys.base_prefix, sys.exec_prefix)
    yield str(Path(sys.executable).resolve().parent)
    yield from (str(path) for path in firelane.__path__)
    here = str(Path.cwd())
    yield from (path for path in sys.path if path and path != here)
    yield from env.paths_in(["LD_LIBRARY_PATH"])


def _compiler(settings: env.Environment) -> Iterator[str]:
    """Its own directory, or all that is installed beside it."""
    found = _compiler_path(settings)
    if found is not None:
        programs = found.resolve().parent
        beside = programs.parent
        yield str(programs if beside in (Path("/"), Path.home()) else beside)


def _compiler_path(settings: env.Environment) -> Path | None:
    for name in _words(settings.cxx)[:1] if settings.cxx else COMPILERS:
        found = shutil.which(name)
        if found is not None:
            return Path(found)
    return None


def made(cache_dir: Path, name: str) -> Path:
    """A directory of the cache, made now: nothing can be said of one that is not there."""
    with contextlib.suppress(OSError):  # whoever writes to it says what is wrong
        (cache_dir / name).mkdir(mode=0o755, parents=True, exist_ok=True)
    return cache_dir / name


def _words(command: str) -> list[str]:
    """None of a command that is not well-formed: whoever runs it says so."""
    with contextlib.suppress(ValueError):
        return shlex.split(command)
    return []
