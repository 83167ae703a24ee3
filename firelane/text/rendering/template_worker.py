"""python -m firelane.text.rendering.template_worker FD: compile a chat template and render it.

The process at the other end of the socket FD sends a TemplateSource, then RenderRequests; each answer is an
outcome and a text.

A template that computes for too long ends this process, as one does that overruns the stack; one that takes
too much memory has it answer that, and end.
"""

from __future__ import annotations

import signal
import sys
from typing import Any

import msgspec

from firelane.child_process import as_child, limit_memory
from firelane.child_process.worker import framed, receive
from firelane.errors import RequestError, TokenizerError
from firelane.heap import map_large_blocks, trim_heap
from firelane.sandbox.confine import confine_worker
from firelane.text.template_limits import CPU_S, MEMORY_BYTES

LARGE_BYTES = 1 << 20
"""Memory is given back after more."""
RENDERED, REFUSED, FAILED, TOO_MUCH = b"t", b"r", b"f", b"m"
"""Outcomes: the first byte of an answer. The rest is the text, or, in UTF-8 too, what is wrong."""


class TemplateSource(msgspec.Struct, array_like=True):
    """where: the file that it came from."""

    source: str
    constants: dict[str, str]
    where: str


class RenderRequest(msgspec.Struct, array_like=True):
    messages: list[dict[str, Any]]
    variables: dict[str, Any]


def _answer(work: Any, request: bytes) -> bytes:
    try:
        return RENDERED + work(request).encode()
    except MemoryError:
        return TOO_MUCH
    except RequestError as error:
        return (REFUSED if error.param else FAILED) + str(error).encode("utf-8", "replace")
    except (TokenizerError, UnicodeError) as error:
        return FAILED + str(error).encode("utf-8", "replace")


class _Renderer:
    """Compiles, then renders."""

    def compile(self, request: bytes) -> str:
        """The variables that the template asks for, as JSON."""
        from firelane.text.rendering.template import ChatTemplate

        made = msgspec.json.decode(request, type=TemplateSource)
        self._template = ChatTemplate(made.source, made.constants, made.where)
        return msgspec.json.encode(sorted(self._template.variables)).decode()

    def render(self, request: bytes) -> str:
        asked = msgspec.json.decode(request, type=RenderRequest)
        return self._template.render(asked.messages, asked.variables)


def main(arguments: list[str]) -> int:
    sock, renderer = as_child(arguments[0]), _Renderer()
    limit_memory(MEMORY_BYTES)
    confine_worker()
    map_large_blocks()
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    work = renderer.compile
    while request := receive(sock):
        signal.setitimer(signal.ITIMER_PROF, CPU_S)
        answer = _answer(work, request)
        signal.setitimer(signal.ITIMER_PROF, 0)
        sock.sendall(framed(answer))
        if answer[:1] == TOO_MUCH:
            return 1
        if len(request) > LARGE_BYTES:
            del request, answer
            trim_heap()
        work = renderer.render
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
