"""The only reader of the environment. Every variable that Firelane knows is a field of `Environment`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path

from firelane.errors import UsageError

PREFIX = "FIRELANE_"


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Settings taken from the environment.

    cache_dir: FIRELANE_CACHE_DIR, where compiled kernels and packed weights lie (default ~/.cache/firelane).
    isa: FIRELANE_ISA, force a CPU target: avx512bf16, avx512, avx2, neonbf16, neon, portable ("" = the best
        here).
    cxx: FIRELANE_CXX, the C++ compiler command ("" = search for g++, clang++, c++, then the ziglang package).
    log_level: FIRELANE_LOG_LEVEL, debug, info, warning or error.
    cache_limit_gib: FIRELANE_CACHE_LIMIT_GIB, most of models and packed weights in the cache, together
        (0 = no limit).
    allow_http: FIRELANE_ALLOW_HTTP (or AWS_ALLOW_HTTP), 1 or true: weights may come over plain http.
    cluster_key: FIRELANE_CLUSTER_KEY, the secret that hosts of one group of ranks share ("" = none).
    compiler_fd: FIRELANE_COMPILER_FD, which an engine sets for itself and its ranks: the socket of the helper
        that compiles for them (None = this process compiles).
    """

    cache_dir: Path
    isa: str = ""
    cxx: str = ""
    log_level: str = "info"
    cache_limit_gib: float = 0
    allow_http: bool = False
    cluster_key: str = field(default="", repr=False)
    compiler_fd: int | None = None


KNOWN = {"ALLOW_HTTP", "CACHE_DIR", "CACHE_LIMIT_GIB", "CLUSTER_KEY", "CXX", "ISA", "LOG_LEVEL"}
OF_ENGINE = {"COMPILER_FD"}
"""Variables that an engine makes for itself and its ranks."""
YES = ("1", "true", "yes", "on")
OF_A_SERVICE = re.compile(
    r"(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
"""Variables that Kubernetes puts into every container for a Service whose name begins with "firelane"
(kubernetes.io/docs/concepts/services-networking/service, "Environment variables")."""
NEAR_MISS = 0.6


def read(environ: Mapping[str, str] = os.environ) -> Environment:
    """Parse the environment. Raises UsageError on a variable that is nearly one of ours: see unknown()."""
    for name in unknown(environ):
        from difflib import get_close_matches  # here: seldom needed

        near = get_close_matches(name.removeprefix(PREFIX), KNOWN, n=1, cutoff=NEAR_MISS)
        if near:
            raise UsageError(
                f"unknown environment variable {name}: is {PREFIX}{near[0]} meant? rename or unset it"
            )
    mine = {k.removeprefix(PREFIX): v for k, v in environ.items() if k.startswith(PREFIX)}
    base = environ.get("XDG_CACHE_HOME") or str(Path(environ.get("HOME", "/")) / ".cache")
    return Environment(
        cache_dir=Path(mine.get("CACHE_DIR") or Path(base) / "firelane"),
        isa=mine.get("ISA", ""),
        cxx=mine.get("CXX", ""),
        log_level=mine.get("LOG_LEVEL", "info"),
        cache_limit_gib=_gib("CACHE_LIMIT_GIB", mine),
        allow_http=(mine.get("ALLOW_HTTP") or environ.get("AWS_ALLOW_HTTP", "")).lower() in YES,
        cluster_key=mine.get("CLUSTER_KEY", ""),
        compiler_fd=int(fd) if (fd := mine.get("COMPILER_FD", "")).isdecimal() else None,
    )


def _gib(name: str, mine: Mapping[str, str]) -> float:
    text = mine.get(name) or "0"
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value < float("inf"):
        raise UsageError(f"{PREFIX}{name} is {text!r}: it must be a number of GiB, 0 for no limit")
    return value


def unknown(environ: Mapping[str, str] = os.environ) -> list[str]:
    """FIRELANE_* variables that mean nothing here, but for those that Kubernetes makes."""
    mine = sorted(name.removeprefix(PREFIX) for name in environ if name.startswith(PREFIX))
    return [
        PREFIX + name for name in mine if name not in KNOWN | OF_ENGINE and not OF_A_SERVICE.fullmatch(name)
    ]


@dataclass(frozen=True, kw_only=True)
class ModelPlaces:
    """Directories in which other programs keep models, whether they are there or not. hub: of the library of
    the Hugging Face hub. ollama: of its user's program, and of its service."""

    hub: Path
    ollama: tuple[Path, ...]
    lm_studio: tuple[Path, ...]
    llama_cpp: Path


def model_places(environ: Mapping[str, str] = os.environ) -> ModelPlaces:
    """By the variables of these programs, else where they keep them by themselves."""
    home = Path(environ.get("HOME", "/"))
    cache = Path(environ.get("XDG_CACHE_HOME") or home / ".cache")
    hub_home = Path(environ.get("HF_HOME") or cache / "huggingface")
    own = environ.get("OLLAMA_MODELS")
    service = Path("/usr/share/ollama/.ollama/models")
    return ModelPlaces(
        hub=Path(environ.get("HF_HUB_CACHE") or hub_home / "hub"),
        ollama=(Path(own),) if own else (home / ".ollama" / "models", service),
        lm_studio=(home / ".lmstudio" / "models", cache / "lm-studio" / "models"),
        llama_cpp=Path(environ.get("LLAMA_CACHE") or cache / "llama.cpp"),
    )


def config_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """The directory of what the user has set."""
    base = environ.get("XDG_CONFIG_HOME") or str(Path(environ.get("HOME", "/")) / ".config")
    return Path(base) / "firelane"


def shows_tracebacks(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether errors are shown with all that led to them."""
    return environ.get(f"{PREFIX}LOG_LEVEL") == "debug"


def signs_requests(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether requests to an object store of Amazon's kind carry a signature."""
    return environ.get("AWS_SKIP_SIGNATURE", "").lower() not in YES


def otlp_configured(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether OpenTelemetry's own variables name a collector of traces."""
    names = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    off = environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    return not off and any(environ.get(name) for name in names)


@dataclass(frozen=True, kw_only=True)
class WorkerGroup:
    """A group of pods that Kubernetes' LeaderWorkerSet starts together: its first one's address, its size,
    and the number of this one (lws.sigs.k8s.io, "Labels, annotations and environment variables")."""

    leader_address: str
    size: int
    index: int


def worker_group(environ: Mapping[str, str] = os.environ) -> WorkerGroup | None:
    """None outside of one."""
    address, size, index = (
        environ.get(f"LWS_{name}", "") for name in ("LEADER_ADDRESS", "GROUP_SIZE", "WORKER_INDEX")
    )
    if not (address and size.isdecimal() and index.isdecimal()):
        return None
    return WorkerGroup(leader_address=address, size=int(size), index=int(index))


def api_key(environ: Mapping[str, str] = os.environ) -> str:
    """The key of a server of the OpenAI API, by the name that its clients know; "" for none."""
    return environ.get("OPENAI_API_KEY", "")


def set_for_server() -> None:
    """Settings that libraries take from the environment alone, where the user has not made them."""
    # A request's text is one piece of work: handing it to a pool of threads only takes time.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def set_compiler(fd: int) -> None:
    """Have this process, and those that it starts, compile by the helper behind the socket `fd`."""
    os.environ[f"{PREFIX}COMPILER_FD"] = str(fd)


def take_passed_fds(pid: int, environ: MutableMapping[str, str] = os.environ) -> int:
    """The number of sockets that systemd has passed to the process `pid`. Child processes do not hear of
    them."""
    count, meant = environ.pop("LISTEN_FDS", ""), environ.pop("LISTEN_PID", "")
    environ.pop("LISTEN_FDNAMES", None)
    return int(count) if count.isdecimal() and meant == str(pid) else 0


def notify_socket(environ: Mapping[str, str] = os.environ) -> str:
    """The socket on which systemd hears when a service is ready; "" for nowhere."""
    return environ.get("NOTIFY_SOCKET", "")


def paths_in(names: Iterable[str], environ: Mapping[str, str] = os.environ) -> list[str]:
    """Files and directories that these variables of other programs name."""
    values = (environ.get(name, "") for name in names)
    return [path for value in values for path in value.split(os.pathsep) if path]


def _own_modules() -> dict[str, str]:
    """Python of a child process takes no module out of the current directory, often that of a model that
    somebody else has made, but where Firelane itself lies there."""
    is_here = Path(__file__).parents[1].samefile(os.curdir)
    return {} if is_here else {"PYTHONSAFEPATH": "1"}


def for_sandbox(**changes: str) -> dict[str, str]:
    """The environment of a child process that runs what is not trusted: nothing that could be secret."""
    names = ("PATH", "LD_LIBRARY_PATH", "TZ", "LANG", "LC_ALL", "SYSTEMROOT")
    kept = {name: os.environ[name] for name in names if name in os.environ}
    return {**kept, **_own_modules(), **changes}


ENGINE_NAMES = frozenset(
    (
        *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TERM", "TMPDIR", "TEMP", "TMP"),
        *("NO_COLOR", "SYSTEMROOT", "VIRTUAL_ENV", "XDG_CACHE_HOME", "LD_LIBRARY_PATH", "LD_PRELOAD"),
        *("CPATH", "LIBRARY_PATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "COMPILER_PATH", "SDKROOT"),
        *("GLIBC_TUNABLES", "TOKENIZERS_PARALLELISM", "CCACHE_DIR", "SCCACHE_DIR"),
        *(f"{PREFIX}{name}" for name in KNOWN - {"CLUSTER_KEY"}),
    )
)
"""Variables that an engine, its ranks and its compiler have a use for."""
ENGINE_PREFIXES = (
    *("LC_", "PYTHON", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "MALLOC_", "ASAN_", "UBSAN_", "ZIG_"),
    *("CUDA_", "NVIDIA_", "TRITON_", "NCCL_", "UCX_", "NIXL_"),
)
STORE_NAMES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
STORE_PREFIXES = ("AWS_", "AZURE_", "GOOGLE_")
"""Prefixes of variables of object stores' clients: addresses, and credentials."""


def for_engine(
    *, stores: bool, hosts: bool, environ: Mapping[str, str] = os.environ, **changes: str
) -> dict[str, str]:
    """The environment of an engine: what it has a use for, and no secret that it does not need. stores: it
    reads weights from an object store, with the credentials here; hosts: it proves to other hosts that it
    has the cluster's key."""

    def is_needed(name: str) -> bool:
        if name in ENGINE_NAMES or name.startswith(ENGINE_PREFIXES):
            return True
        if name == f"{PREFIX}CLUSTER_KEY":
            return hosts
        return stores and (name.upper() in STORE_NAMES or name.startswith(STORE_PREFIXES))

    kept = {name: value for name, value in environ.items() if is_needed(name)}
    # No product is NumPy's: its threads would only take time at the start, and memory.
    return {"OPENBLAS_NUM_THREADS": "1", **kept, **_own_modules(), **changes}


def for_child(**changes: str) -> dict[str, str]:
    """The environment of a child process: this process's own, with `changes`."""
    return {**os.environ, **_own_modules(), **changes}


def for_agent(*, confined: bool, **changes: str) -> dict[str, str]:
    """The environment of the process of NIXL, which talks to a network: nothing secret, but settings of NIXL
    and UCX. confined: it may not reach into other processes, as UCX's shared memory does."""
    settings = {
        "NIXL_LOG_LEVEL": "ERROR",
        "UCX_LOG_LEVEL": "error",
        "UCX_HANDLE_ERRORS": "none",  # a crash ends the process at once
        **({"UCX_TLS": "^sm"} if confined else {}),
        **{name: value for name, value in os.environ.items() if name.startswith(("UCX_", "NIXL_"))},
    }
    return {**for_sandbox(**settings), **changes}
