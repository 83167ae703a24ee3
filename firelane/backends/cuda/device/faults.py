"""Errors of torch, Triton and the driver as Firelane's: one line, with what to do.

Told apart by the names of classes and the beginnings of messages, so that nothing has to be imported and
every version of either will do. An exception that is none of theirs passes: it is a mistake of ours.
"""

from __future__ import annotations

import re
from types import TracebackType

from firelane.errors import CompilerError, FirelaneError, MachineError, OutOfMemoryError

_COMPILER = frozenset({"TritonError", "CompilationError", "OutOfResources", "PTXASError"})
_DEVICE = frozenset({"AcceleratorError", "CudaError"})
_DEVICE_TEXT = re.compile(
    r"CUDA (driver )?error|Triton Error \[CUDA\]|CUBLAS|CUDNN|cu(da|BLAS)[A-Z]\w* ", re.ASCII
)
_LOOK = "look at nvidia-smi, and at `dmesg | grep -i xid` for a fault of the hardware"
_SIZE = r"[\d.]+ (?:bytes|[KMGT]iB)"
_OTHERS = re.compile(rf"Process \d+ has ({_SIZE}) memory in use")


class Translation:
    """A context in which foreign exceptions become Firelane's; see translated()."""

    __slots__ = ("_doing", "_kernel")

    def __init__(self, doing: str, kernel: str) -> None:
        self._doing, self._kernel = doing, kernel

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            found = translate(error, self._doing, kernel=self._kernel)
            if found is not None:
                raise found from error


def translated(doing: str, *, kernel: str = "") -> Translation:
    """`with translated("capturing the graph of 8 rows"):` — what fails inside is told as a failure of that.

    kernel: the name of the kernel that is compiled inside, where that is all that happens. Raises
    OutOfMemoryError, CompilerError, MachineError, or what was raised where it is not the device's.
    """
    return Translation(doing, kernel)


def translate(error: Exception, doing: str, *, kernel: str = "") -> FirelaneError | None:
    """The error to raise in place of `error`, or None: leave it."""
    if isinstance(error, FirelaneError):
        return None
    text, classes = str(error), {c.__name__ for c in type(error).__mro__}
    if "OutOfMemoryError" in classes or "out of memory" in text:
        return OutOfMemoryError(_out_of_memory(text, doing))
    if classes & _COMPILER or (kernel and not _DEVICE_TEXT.match(text)):
        what = f"kernel {kernel}" if kernel else doing
        return CompilerError(
            f"{what} failed to compile: {_reason(error, text)}; is torch 2.11 or newer, with the Triton that "
            "it brings, and a C compiler there? (firelane doctor)"
        )
    if classes & _DEVICE or _DEVICE_TEXT.match(text):
        reason = re.sub(r"^CUDA (driver )?error: |^Triton Error \[CUDA\]: ", "", _first_line(text))
        return MachineError(
            f"the GPU failed while {doing}: {reason}; this process cannot use it any more: {_LOOK}"
        )
    if isinstance(error, ImportError | OSError):
        return MachineError(f"{doing} failed: {_first_line(text)}; install torch and triton again")
    return None


def _out_of_memory(text: str, doing: str) -> str:
    """PyTorch names the sizes: `Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.81 GiB of which
    5.06 MiB is free. Process 7 has 100.00 GiB memory in use.`"""
    tried, total, free = (
        _found(rf"{before} ({_SIZE})", text)
        for before in ("Tried to allocate", "total capacity of", "of which")
    )
    parts = [f"the GPU has too little memory for {doing}"]
    if tried and total and free:
        parts.append(f"{tried} were asked for, {free} of {total} are free")
    others = _OTHERS.findall(text)
    if others:
        parts.append(f"other processes hold {' + '.join(others)} (nvidia-smi lists them)")
    hint = "end what else runs on it, or lower --kv-cache-gib, --max-num-batched-tokens or --max-model-len"
    return f"{'; '.join(parts)}: {hint}"


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match[1] if match else ""


def _reason(error: Exception, text: str) -> str:
    """The line of a compiler's message that says what is wrong: Triton shows the source before it."""
    inner = getattr(error, "error_message", None)
    lines = [line.strip() for line in (inner or text).splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line.lower()]
    return (telling or lines or [type(error).__name__])[0][:300]


def _first_line(text: str) -> str:
    return text.strip().split("\n", 1)[0].rstrip(". ") or "no reason given"
