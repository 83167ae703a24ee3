"""The C++ compiler, the machine it compiles for, and the cache of compiled kernels.

A compiled kernel lies in `cache_dir/kernels/<key>.so`, beside its source `<key>.cpp` and, where the compiler
failed, `<key>.log`; an empty `<key>.takes` says that a compiler knows some flags. The key hashes all that the
result depends on. A file under its final name is whole: it ends with a digest of the key and its bytes, which
is checked before each use. The directory has to be this user's: whoever can write to it runs code here.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import importlib.util
import logging
import os
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from firelane import env
from firelane.child_process.child import in_words
from firelane.errors import CacheError, CompilerError, UsageError
from firelane.native.compiler_group import compiler_group
from firelane.native.compiler_run import INSTALL_HINT, run_compiler, was_killed
from firelane.storage import cache_directory, locked, read_own, remove_leftovers, replacing

if TYPE_CHECKING:
    from firelane.native.compile_requests import BuildRequest

BASE_FLAGS = (
    "-std=c++20",
    "-O3",
    "-shared",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-math-errno",
    "-ffp-contract=off",  # fused multiply-add only where the source asks: same bits from every compiler
    "-Wno-psabi",
)
COMPILERS = ("g++", "clang++", "c++")
DIGEST_BYTES = hashlib.sha256().digest_size
MOST_LIBRARY_BYTES = 256 << 20
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Toolchain:
    """A C++ compiler. `command` is its argument vector, `version` the first line of its --version. service:
    the socket of a helper that compiles, where this process may not write kernels (compile_service.py)."""

    command: tuple[str, ...]
    version: str
    service: int | None = None

    @property
    def is_zig(self) -> bool:
        """Whether it is clang driven by zig, which names machine features in its own way."""
        return any("zig" in Path(word).name for word in self.command)

    def build(
        self,
        source: str,
        *,
        include_dirs: Sequence[Path],
        flags: Sequence[str],
        cache_dir: Path,
        cpu_key: str,
        name: str,
        parts: int = 1,
    ) -> Path:
        """Compile C++20 source to a shared library, or find it in the cache; returns its path.

        Safe when several processes ask for the same library at once: one compiles, the others wait for it.
        `name` is for messages. parts: translation units to compile side by side and link; each is the whole
        source, with FIRELANE_PART defined as its number, from 1.
        Raises CompilerError when the compiler fails, CacheError when the cache cannot be written.
        """
        key = self.key(source, include_dirs=include_dirs, flags=flags, cpu_key=cpu_key)
        library = cache_dir / "kernels" / f"{key}.so"
        if self.service is not None:
            from firelane.native.compile_requests import (
                BuildRequest,
            )  # with a library that kernels do without

            request = BuildRequest(
                source=source,
                include_dirs=[str(directory) for directory in include_dirs],
                flags=list(flags),
                cpu_key=cpu_key,
                name=name,
                parts=parts,
            )
            return self._ask_for(library, key, request, self.service)
        with _cache_errors(library.parent):
            cache_directory(library.parent)
            if has_digest(library, key):
                return library
            if self.is_zig:
                cache_directory(_zig_cache(cache_dir))
            with locked(library.with_suffix(".lock")):
                if not has_digest(library, key):
                    log.debug("compiling %s: none in the cache for this CPU, compiler and version", name)
                    arguments = [*flags, *(f"-I{d}" for d in include_dirs)]
                    self._compile(source, library=library, arguments=arguments, name=name, parts=parts)
        return library

    def takes(self, flags: Sequence[str], cache_dir: Path) -> bool:
        """Whether this compiler knows the flags: an old one does not know the newest features. A yes is kept
        in the cache: no compiler is started where all kernels lie there."""
        if self.is_zig:
            return True
        kept = cache_dir / "kernels" / f"{self.key('', include_dirs=(), flags=flags, cpu_key='')}.takes"
        if kept.exists():
            return True
        if self.service is not None:
            from firelane.native.compile_requests import Taken, TakesRequest, ask

            answer = ask(self.service, TakesRequest(flags=list(flags)))
            return isinstance(answer, Taken) and answer.is_taken
        taken = _takes((*self.command, *flags))
        if taken:
            with contextlib.suppress(OSError, CacheError):  # it is asked again then
                cache_directory(kept.parent)
                kept.touch()
        return taken

    def key(self, source: str, *, include_dirs: Sequence[Path], flags: Sequence[str], cpu_key: str) -> str:
        """The key of a library that `build` makes: the same only where all that the library depends on is."""
        digest = hashlib.sha256()
        parts = [source, cpu_key, self.version, *self.command, *BASE_FLAGS, *flags]
        for header in (h for d in include_dirs for h in sorted(d.rglob("*.h"))):
            parts += [header.name, header.read_text()]
        for part in parts:
            encoded = part.encode()
            digest.update(len(encoded).to_bytes(8, "little") + encoded)
        return digest.hexdigest()[:32]

    def _ask_for(self, library: Path, key: str, request: BuildRequest, service: int) -> Path:
        """Have the library made by the helper, unless it is there."""
        from firelane.native.compile_requests import ask

        if not has_digest(library, key):
            ask(service, request)
            if not has_digest(library, key):
                raise CompilerError(
                    f"{request.name} were compiled by another compiler than {self.command[0]}"
                )
        return library

    def _compile(
        self, source: str, *, library: Path, arguments: Sequence[str], name: str, parts: int
    ) -> None:
        unit = library.with_suffix(".cpp")
        remove_leftovers(library)
        unit.write_text(source)
        flags = zig_flags([*BASE_FLAGS, *arguments]) if self.is_zig else [*BASE_FLAGS, *arguments]
        with _scratch(library.with_suffix(".parts")) as folder, replacing(library) as partial:
            log = library.with_suffix(".log")
            run = functools.partial(self._run_all, folder=folder, log=log, name=name)
            if parts == 1:
                run([[*self.command, *flags, str(unit), "-o", str(partial)]])
            else:
                self._in_parts(unit, flags, partial, run, folder, parts)
            if not partial.is_file():
                raise CompilerError(
                    f"{self.command[0]} gave no error and no library for {name}: {INSTALL_HINT}"
                )
            append_digest(partial, library.stem)

    def _in_parts(
        self,
        unit: Path,
        flags: Sequence[str],
        made: Path,
        run: Callable[[Sequence[Sequence[str]]], None],
        folder: Path,
        parts: int,
    ) -> None:
        objects = [str(folder / f"{part}.o") for part in range(1, parts + 1)]
        commands = [
            [*self.command, *flags, "-c", f"-DFIRELANE_PART={part}", str(unit), "-o", name]
            for part, name in enumerate(objects, 1)
        ]
        run(commands)
        run([[*self.command, *flags, *objects, "-o", str(made)]])

    def _run_all(self, commands: Sequence[Sequence[str]], *, folder: Path, log: Path, name: str) -> None:
        """Side by side; raises what the first of them has raised. An interrupt kills them: nothing waits."""
        left = threading.Event()
        with ThreadPoolExecutor(len(commands)) as pool, compiler_group() as group:
            run = functools.partial(self._run, group=group, left=left, folder=folder, log=log, name=name)
            running = [pool.submit(run, command) for command in commands]
            try:
                wait(running)
            finally:
                left.set()  # what is killed now is killed by this process
        for one in running:
            one.result()

    def _run(
        self,
        command: Sequence[str],
        *,
        group: int | None,
        left: threading.Event,
        folder: Path,
        log: Path,
        name: str,
    ) -> None:
        # Its temporary files lie there, too: an engine may write nowhere else than in the cache.
        cache = {"TMPDIR": str(folder), "ZIG_GLOBAL_CACHE_DIR": str(_zig_cache(log.parent.parent))}
        environ = env.for_child(LC_ALL="C", **cache)
        done = run_compiler(command, environ, name=name, group=group, left=left)
        if done.returncode == 0:
            return
        if "No space left on device" in done.stdout:
            raise OSError(errno.ENOSPC, "No space left on device")
        log.write_text(f"{shlex.join(command)}\n{done.stdout}")
        reason = first_error(done.stdout) or f"exit code {done.returncode}"
        raise CompilerError(f"{command[0]} failed on {name}: {reason}; the full log is {log}")


@contextlib.contextmanager
def _scratch(folder: Path) -> Generator[Path]:
    """An empty folder for what a compiler needs meanwhile. The caller holds the lock of its library."""
    shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def find_compiler(settings: env.Environment) -> Toolchain:
    """FIRELANE_CXX, else g++, clang++ or c++ on PATH, else the ziglang package.

    Raises UsageError when FIRELANE_CXX names no program, CompilerError when there is none or it cannot run.
    """
    if settings.cxx:
        command = tuple(shlex.split(settings.cxx))
        if not command or shutil.which(command[0]) is None:
            raise UsageError(f"FIRELANE_CXX={settings.cxx!r} is not on PATH: unset it, or {INSTALL_HINT}")
        return Toolchain(command=command, version=_version(command), service=settings.compiler_fd)
    for candidate in COMPILERS:
        path = shutil.which(candidate)
        if path is not None:
            return Toolchain(command=(path,), version=_version((path,)), service=settings.compiler_fd)
    if importlib.util.find_spec("ziglang") is not None:
        command = (sys.executable, "-m", "ziglang", "c++")
        return Toolchain(command=command, version=_version(command), service=settings.compiler_fd)
    raise CompilerError(f"no C++ compiler: {INSTALL_HINT}")


@functools.cache
def _takes(command: tuple[str, ...]) -> bool:
    """Asked once in a process: it takes a compiler some 30 ms to say."""
    words = [*command, "-fsyntax-only", "-x", "c++", os.devnull]
    with compiler_group() as group:
        done = run_compiler(words, env.for_child(LC_ALL="C"), name="a question for its flags", group=group)
    if was_killed(done):
        raise CompilerError(f"{command[0]} {in_words(done.returncode)} when it was asked for its flags")
    return done.returncode == 0


def _version(command: Sequence[str]) -> str:
    words = [*command, "--version"]
    done = run_compiler(words, env.for_child(LC_ALL="C"), name="its version", errors=subprocess.DEVNULL)
    if done.returncode:
        raise CompilerError(f"{shlex.join(words)} failed ({in_words(done.returncode)}): {INSTALL_HINT}")
    return (done.stdout.splitlines() or ["unknown"])[0]


def _zig_cache(cache_dir: Path) -> Path:
    """The directory in which zig keeps what it has compiled, parts of our libraries among it."""
    return cache_dir / "zig"


def zig_flags(flags: Sequence[str]) -> list[str]:
    """Flags as `zig c++` wants them: machine features in one -mcpu."""
    kept = [f for f in flags if not f.startswith("-m")]
    named = [f for f in flags if f.startswith("-m") and not f.startswith("-mtune=")]
    features = [name for f in named for name in _zig_features(f)]
    return [*kept, "-mcpu=" + "+".join(["baseline", *features])]


def _zig_features(flag: str) -> list[str]:
    """LLVM's names of what -msse4.2 or -march=armv8.2-a+bf16 allows."""
    return flag.removeprefix("-m").removeprefix("arch=arm").replace("-a", "a").replace(".", "_").split("+")


def first_error(log: str) -> str:
    """The first line of a compiler's output that tells an error, or ''."""
    return next((line.strip() for line in log.splitlines() if "error" in line), "")


def append_digest(path: Path, key: str) -> None:
    """Append the digest of the key and the file's bytes (a dynamic loader ignores what follows the last
    section): a library of another key is not taken for this one."""
    with path.open("r+b") as file:
        digest = _digest(key, file.read())
        file.write(digest)


def has_digest(path: Path, key: str) -> bool:
    """Whether the file is there, is whole, was made for `key`, and nobody else can have written it."""
    try:
        content = read_own(path, MOST_LIBRARY_BYTES)
    except OSError:
        return False
    return _digest(key, content[:-DIGEST_BYTES]) == content[-DIGEST_BYTES:]


def _digest(key: str, content: bytes) -> bytes:
    return hashlib.sha256(f"{key}\n".encode() + content).digest()


@contextlib.contextmanager
def _cache_errors(directory: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise CacheError(
            f"cannot write compiled kernels to {directory}: {error.strerror}; "
            "free space, make it writable, or set FIRELANE_CACHE_DIR to another directory"
        ) from error
