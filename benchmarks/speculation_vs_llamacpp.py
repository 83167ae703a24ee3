"""Speculative decoding of Firelane and of llama.cpp: servers of one GGUF file, the same requests, in turns.

    python benchmarks/speculation_vs_llamacpp.py FILE --llama-server PATH [--kinds ngram-simple ngram-mod ...]
        [--draft FILE] [--tokens 384] [--repeats 7] [--option=--activation-dtype --option=int8]

The request: a file is in the prompt, and is asked for again with one name changed, another one in each round;
ours has a salt of its own, too, so that no draft comes from an answer before. With --draft both draft with
that model. Each kind of --spec-type has a server of llama.cpp of its own, and so has plain decoding; ours
decodes plainly where a request says so. PATH is built from the sources that the Python package
llama-cpp-python brings (vendor/llama.cpp, target llama-server).

A rate is of the tokens of a whole answer, not streamed, whose prompt was asked for once before. Each round
asks all servers, in an order that turns; printed are medians of rates, and of the ratios to ours in the same
round. The answers' common beginning says whether both did the same work: their sums round differently, and
may part.
"""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from firelane.bench.server import ServerProcess
from firelane.bench.table import format_table
from firelane.errors import MachineError
from firelane.native.machine import cpu_identity

ROOT = Path(__file__).parents[1]
FILE = ROOT / "firelane" / "engine" / "policies" / "fcfs.py"
NGRAMS = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
OURS = "Firelane"
CONTEXT = 2048
READY_S = 300.0
COLUMNS = ("server", "drafts", "tokens/s", "ours / this", "rounds", "same beginning")


@dataclass
class Side:
    """One way to answer the request. fields: of the body, beside those of all."""

    server: str
    drafts: str
    url: str
    model: str = ""
    fields: dict[str, Any] = field(default_factory=dict)
    rates: list[float] = field(default_factory=list)
    text: str = ""


def edit_prompt(name: str) -> str:
    source = FILE.read_text(encoding="utf-8")
    begin = f"The file a.py:\n```python\n{source}```\n\n"
    return f"{begin}The file a.py again, with FcfsQueue renamed to {name}:\n```python\n"


def ask(client: httpx.Client, side: Side, prompt: str, tokens: int) -> None:
    """One answer, whose prompt is cached before; its rate is noted."""
    if not side.model:
        side.model = client.get(f"{side.url}/v1/models").json()["data"][0]["id"]
    body = {"model": side.model, "prompt": prompt, "temperature": 0, "ignore_eos": True, **side.fields}
    client.post(f"{side.url}/v1/completions", json={**body, "max_tokens": 1}).raise_for_status()
    began_s = time.perf_counter()
    answer = client.post(f"{side.url}/v1/completions", json={**body, "max_tokens": tokens}).json()
    side.rates.append(answer["usage"]["completion_tokens"] / (time.perf_counter() - began_s))
    side.text = answer["choices"][0]["text"]


@contextmanager
def llama_server(program: Path, words: list[str], threads: int) -> Iterator[str]:
    """The URL of a server of llama.cpp that is ready. Raises MachineError."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(program), "--port", str(port), "-c", str(CONTEXT), "-np", "1", "-t", str(threads), *words]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_ready(process, url)
        yield url
    finally:
        process.terminate()
        process.wait()


def _wait_ready(process: subprocess.Popen[bytes], url: str) -> None:
    ends_s = time.monotonic() + READY_S
    while process.poll() is None and time.monotonic() < ends_s:
        try:
            if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.1)
    raise MachineError(f"llama-server did not become ready: {' '.join(map(str, process.args))}")


def sides_of(args: argparse.Namespace, stack: ExitStack) -> list[Side]:
    """Ours with drafts first, then plain, then each of llama.cpp's."""
    own = f"draft={args.draft}" if args.draft else "ngram"
    options = ["--speculative", own, "--max-model-len", str(CONTEXT), *args.option]
    ours = stack.enter_context(ServerProcess([str(args.file), *options]))
    found = [Side(OURS, own.partition("=")[0], ours.url)]
    found.append(Side(OURS, "none", ours.url, fields={"speculative": False}))
    kinds = args.kinds or (("draft-simple",) if args.draft else NGRAMS)
    for kind in ("none", *kinds):
        words = ["-m", str(args.file), "--spec-type", kind]
        words += ["--spec-draft-model", str(args.draft)] if kind.startswith("draft") else []
        words += args.llama_option
        url = stack.enter_context(llama_server(args.llama_server, words, args.threads))
        found.append(Side("llama.cpp", kind, url))
    return found


def take_turns(sides: list[Side], prompt: str, tokens: int, repeats: int) -> None:
    """prompt: another one than an edit, the same in each round; "" for an edit."""
    with httpx.Client(timeout=600) as client:
        for turn in range(-1, repeats):
            for index, side in enumerate(sides):
                if side.server == OURS:
                    side.fields["cache_salt"] = f"round {turn}, {index}"
            at = turn % len(sides)
            for side in sides[at:] + sides[:at]:
                ask(client, side, prompt or edit_prompt(f"Line{turn + 1}"), tokens)
                if turn < 0:
                    side.rates.clear()


def row(side: Side, ours: Side) -> list[str]:
    ratios = [a / b for a, b in zip(ours.rates, side.rates, strict=True)]
    pairs = enumerate(zip(side.text, ours.text, strict=False))
    same = next((at for at, (a, b) in pairs if a != b), min(len(side.text), len(ours.text)))
    return [
        side.server,
        side.drafts,
        f"{median(side.rates):.1f}",
        f"{median(ratios):.2f}",
        f"{min(ratios):.2f} to {max(ratios):.2f}",
        f"{same} of {len(ours.text)} characters",
    ]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Speculative decoding beside that of llama.cpp.")
    parser.add_argument("file", type=Path, metavar="FILE", help="a model as GGUF")
    parser.add_argument("--llama-server", type=Path, required=True, metavar="PATH")
    parser.add_argument("--kinds", nargs="+", help="of --spec-type; default: all that need no model")
    parser.add_argument("--draft", type=Path, metavar="FILE", help="a draft model as GGUF, for both")
    parser.add_argument(
        "--prompt", type=Path, metavar="FILE", help="a text that goes on, in place of the edit"
    )
    parser.add_argument("--option", action="append", default=[], help="one more word of firelane serve")
    parser.add_argument("--llama-option", action="append", default=[], help="one more word of llama-server")
    parser.add_argument("--threads", type=int, default=cpu_identity().usable_cores, help="of llama.cpp")
    parser.add_argument("--tokens", type=int, default=384)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args(arguments)
    prompt = args.prompt.read_text(encoding="utf-8") if args.prompt else ""
    with ExitStack() as stack:
        sides = sides_of(args, stack)
        take_turns(sides, prompt, args.tokens, args.repeats)
    print(f"{args.file.name}, {cpu_identity().model}, {args.repeats} rounds in turns, {args.tokens} tokens\n")
    print(format_table(COLUMNS, [row(side, sides[0]) for side in sides]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
