"""Drives the clients that docs/clients.md names, and prints a table of what works.

Each session asks for the file `note.txt` of its folder: the scripted engine calls the client's tool that
reads files, the client runs it and sends the result, and the engine answers with what it has read. A
session is right when the client prints that. Structured answers are made by the embedded model, and right
when all of them end and fit their types.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "gateway")]

from scripted_server import SECRET, ScriptedServer  # noqa: E402

SESSION_S = 180


@dataclass(frozen=True)
class Client:
    """package: its name at the registry of `source`: "pip" is what this environment has, "venv" is installed
    by pip beside what npm installs. further: packages that it needs besides. run: gives the session's output,
    in which `right` is found where all went well.
    """

    package: str
    source: str
    run: Callable[[Place], str]
    further: tuple[str, ...] = ()
    right: str = rf"The note says:\s*{SECRET}"


@dataclass(frozen=True)
class Place:
    """Where a session runs. modules: what npm installed. work: its folder, with the note. home: a user's."""

    url: str
    modules: Path
    work: Path
    home: Path

    def command(self, *words: str, **env: str) -> str:
        """Output and complaints of a program. No variable of the caller's reaches it but PATH."""
        own = {"PATH": os.environ["PATH"], "HOME": str(self.home), "NO_PROXY": "127.0.0.1", **env}
        done = subprocess.run(
            words, cwd=self.work, env=own, capture_output=True, text=True, timeout=SESSION_S,
            stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        return done.stdout + done.stderr


def python_script(name: str) -> Callable[[Place], str]:
    return lambda place: place.command(
        sys.executable, str(ROOT / "scripts" / "client_sessions" / name), place.url
    )


def venv_script(name: str) -> Callable[[Place], str]:
    return lambda place: place.command(
        str(venv_python(place.modules.parent)),
        str(ROOT / "scripts" / "client_sessions" / name),
        place.url,
        OPENAI_API_KEY="key",
    )


def venv_python(folder: Path) -> Path:
    return folder / "venv" / "bin" / "python"


def structured(place: Place) -> str:
    """In front of the embedded model."""
    from firelane.bench.server import ServerProcess

    script = str(ROOT / "scripts" / "client_sessions" / "structured_session.py")
    with ServerProcess([]) as server:
        python = str(venv_python(place.modules.parent))
        return place.command(python, script, server.url, "firelane-embedded")


def node_script(name: str) -> Callable[[Place], str]:
    def run(place: Place) -> str:
        script = place.modules.parent / name  # node looks for modules beside the script
        shutil.copy(ROOT / "scripts" / "client_sessions" / name, script)
        return place.command("node", str(script), place.url)

    return run


def claude_code(place: Place) -> str:
    return place.command(
        str(place.modules / ".bin" / "claude"),
        *("-p", "What does note.txt say?", "--allowedTools", "Read", "--model", "toy"),
        ANTHROPIC_BASE_URL=place.url,
        ANTHROPIC_API_KEY="key",
        ANTHROPIC_SMALL_FAST_MODEL="toy",
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
    )


def codex(place: Place) -> str:
    provider = f'{{name="local", base_url="{place.url}/v1", wire_api="responses", env_key="KEY"}}'
    return place.command(
        str(place.modules / ".bin" / "codex"),
        *("exec", "--skip-git-repo-check", "--sandbox", "danger-full-access", "-m", "toy"),
        *("-c", f"model_providers.local={provider}", "-c", 'model_provider="local"'),
        "What does note.txt say?",
        KEY="key",
    )


CLIENTS = {
    "OpenAI, Python": Client("openai", "pip", python_script("openai_session.py")),
    "Anthropic, Python": Client("anthropic", "pip", python_script("anthropic_session.py")),
    "Ollama, Python": Client("ollama", "pip", python_script("ollama_session.py")),
    "OpenAI, Node": Client("openai", "npm", node_script("openai_session.mjs")),
    "Anthropic, Node": Client("@anthropic-ai/sdk", "npm", node_script("anthropic_session.mjs")),
    "Ollama, JavaScript": Client("ollama", "npm", node_script("ollama_session.mjs")),
    "Claude Code": Client("@anthropic-ai/claude-code", "npm", claude_code),
    "Codex": Client("@openai/codex", "npm", codex),
    "Vercel's AI SDK": Client(
        "ai", "npm", node_script("vercel_session.mjs"), further=("@ai-sdk/openai-compatible", "zod")
    ),
    "LiteLLM": Client("litellm", "venv", venv_script("litellm_session.py")),
    "Pydantic AI": Client(
        "pydantic-ai-slim", "venv", venv_script("pydantic_ai_session.py"), further=("openai",)
    ),
    "LlamaIndex": Client("llama-index-llms-openai-like", "venv", venv_script("llama_index_session.py")),
    "llm": Client("llm", "venv", venv_script("llm_session.py")),
    "OpenAI's Agents SDK": Client("openai-agents", "venv", venv_script("agents_session.py")),
    "Instructor and LangChain, structured answers": Client(
        "instructor", "venv", structured, further=("langchain-openai",), right="fit: 12 of 12"
    ),
}


def version_of(client: Client, folder: Path) -> str:
    """Install it where it is not there yet, and say which it is."""
    if client.source == "pip":
        import importlib.metadata

        return importlib.metadata.version(client.package)
    if client.source == "venv":
        return _in_venv(client, folder)
    card = folder / "node_modules" / client.package / "package.json"
    if not card.exists():
        words = ("npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), client.package)
        subprocess.run([*words, *client.further], check=True, stdout=subprocess.DEVNULL)
    return str(json.loads(card.read_text())["version"])


def _in_venv(client: Client, folder: Path) -> str:
    python = venv_python(folder)
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    asked = [str(python), "-c", f"import importlib.metadata as m; print(m.version({client.package!r}))"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False)
    if found.returncode:
        words = (str(python), "-m", "pip", "install", "-q", client.package, *client.further)
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        found = subprocess.run(asked, capture_output=True, text=True, check=True)
    return found.stdout.strip()


def session(client: Client, folder: Path, url: str) -> str:
    """What went wrong, "" if nothing did."""
    with tempfile.TemporaryDirectory() as work, tempfile.TemporaryDirectory() as home:
        (Path(work) / "note.txt").write_text(SECRET + "\n")
        try:
            said = client.run(Place(url, folder / "node_modules", Path(work), Path(home)))
        except subprocess.TimeoutExpired:
            return f"no end after {SESSION_S} s"
    return "" if re.search(client.right, said) else said.strip()[-1000:] or "no output"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=CLIENTS, default=list(CLIENTS), metavar="NAME")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "clients", help="for npm's packages")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    rows, failures = [], []
    with ScriptedServer() as server:
        for name in arguments.only:
            version = version_of(CLIENTS[name], arguments.folder)
            wrong = session(CLIENTS[name], arguments.folder, server.url)
            rows.append(f"| {name} | `{CLIENTS[name].package}` {version} | {'no' if wrong else 'yes'} |")
            if wrong:
                failures.append(f"{name}:\n{wrong}\nrequests:\n" + "\n".join(server.requests[-8:]))
            server.requests.clear()
    print("| client | package | works |\n|---|---|---|", *rows, sep="\n")
    print(*failures, sep="\n\n", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
