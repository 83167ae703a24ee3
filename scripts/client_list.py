"""The clients that docs/clients.md names, and a session of each."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from scripted_server import SECRET

ROOT = Path(__file__).resolve().parent.parent
SESSIONS = ROOT / "scripts" / "client_sessions"
SESSION_S = 180
QUESTION = "What does note.txt say?"


@dataclass(frozen=True)
class Client:
    """package: its name at the registry of `source`: "pip" is what this environment has, "venv" is installed
    by pip into an environment of its own. further: packages that it needs besides. run: gives the session's
    output, in which `right` is found where all went well. extra: of the package, as pip names it.
    """

    package: str
    source: str
    run: Callable[[Place], str]
    further: tuple[str, ...] = ()
    right: str = rf"The note says:\s*{SECRET}"
    extra: str = ""


@dataclass(frozen=True)
class Place:
    """The place of a session. modules: what npm installed. python: of the client's environment. work: its
    folder, with the note. home: a user's.
    """

    url: str
    modules: Path
    python: Path
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

    def script(self, name: str, *words: str, **env: str) -> str:
        """A session of the client's environment."""
        return self.command(str(self.python), str(SESSIONS / name), *words, **env)

    def tool(self, name: str, *words: str, **env: str) -> str:
        """A program that came with the client: for npm's, or in its environment."""
        npm = self.modules / ".bin" / name
        return self.command(str(npm if npm.exists() else self.python.parent / name), *words, **env)


def python_script(name: str) -> Callable[[Place], str]:
    return lambda place: place.script(name, place.url, OPENAI_API_KEY="key")


def node_script(name: str) -> Callable[[Place], str]:
    def run(place: Place) -> str:
        script = place.modules.parent / name  # node looks for modules beside the script
        shutil.copy(SESSIONS / name, script)
        return place.command("node", str(script), place.url)

    return run


def with_embedded(name: str) -> Callable[[Place], str]:
    """In front of the embedded model: url, name of the model, its directory."""

    def run(place: Place) -> str:
        from firelane.bench.server import ServerProcess
        from firelane.sources.resolve import EMBEDDED

        with ServerProcess([]) as server:
            return place.script(name, server.url, "firelane-embedded", str(EMBEDDED))

    return run


def claude_code(place: Place) -> str:
    return place.tool(
        "claude",
        *("-p", QUESTION, "--allowedTools", "Read", "--model", "toy"),
        ANTHROPIC_BASE_URL=place.url,
        ANTHROPIC_API_KEY="key",
        ANTHROPIC_SMALL_FAST_MODEL="toy",
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
    )


def codex(place: Place) -> str:
    provider = f'{{name="local", base_url="{place.url}/v1", wire_api="responses", env_key="KEY"}}'
    return place.tool(
        "codex",
        *("exec", "--skip-git-repo-check", "--sandbox", "danger-full-access", "-m", "toy"),
        *("-c", f"model_providers.local={provider}", "-c", 'model_provider="local"'),
        QUESTION,
        KEY="key",
    )


def opencode(place: Place) -> str:
    local = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{place.url}/v1", "apiKey": "key"},
        "models": {"toy": {"limit": {"context": 131072, "output": 4096}}},
    }
    settings = {"provider": {"local": local}, "autoupdate": False, "share": "disabled"}
    (place.work / "opencode.json").write_text(json.dumps(settings))
    return place.tool("opencode", "run", "--model", "local/toy", QUESTION)


def aider(place: Place) -> str:
    """Run aider with the request for an edit; return the note after it, or what aider said where the note is
    unchanged."""
    said = place.tool(
        "aider",
        *("--model", "openai/toy", "--edit-format", "diff", "--no-git", "--yes-always", "--no-check-update"),
        *("--analytics-disable", "--no-show-model-warnings", "--map-tokens", "0", "--message"),
        *("Say in note.txt what it is", "note.txt"),
        OPENAI_API_BASE=f"{place.url}/v1",
        OPENAI_API_KEY="key",
    )
    note = (place.work / "note.txt").read_text()
    return note if note != f"{SECRET}\n" else said.replace("The note says", "It said")


def promptfoo(place: Place) -> str:
    provider = {"id": "openai:chat:toy", "config": {"apiBaseUrl": f"{place.url}/v1", "apiKey": "key"}}
    asks = {
        "prompts": ["Say {{what}}"],
        "providers": [provider],
        "tests": [
            {"vars": {"what": "hello"}, "assert": [{"type": "equals", "value": "A note"}]},
            {"vars": {"what": f"RESULT: {SECRET}"}, "assert": [{"type": "contains", "value": SECRET}]},
        ],
    }
    (place.work / "promptfooconfig.json").write_text(json.dumps(asks))
    return place.tool(
        "promptfoo",
        *("eval", "--no-cache", "--no-progress-bar", "--no-share", "--config", "promptfooconfig.json"),
        PROMPTFOO_DISABLE_TELEMETRY="1",
        PROMPTFOO_DISABLE_UPDATE="1",
        PROMPTFOO_DISABLE_REMOTE_GENERATION="1",
    )


CLIENTS = {
    "OpenAI, Python": Client("openai", "pip", python_script("openai_session.py")),
    "Anthropic, Python": Client("anthropic", "pip", python_script("anthropic_session.py")),
    "Anthropic, Python, tool runner": Client(
        "anthropic", "pip", python_script("anthropic_runner_session.py")
    ),
    "Anthropic, Node, tool runner": Client(
        "@anthropic-ai/sdk", "npm", node_script("anthropic_runner_session.mjs")
    ),
    "Ollama, Python": Client("ollama", "pip", python_script("ollama_session.py")),
    "OpenAI, Node": Client("openai", "npm", node_script("openai_session.mjs")),
    "Anthropic, Node": Client("@anthropic-ai/sdk", "npm", node_script("anthropic_session.mjs")),
    "Ollama, JavaScript": Client("ollama", "npm", node_script("ollama_session.mjs")),
    "Claude Code": Client("@anthropic-ai/claude-code", "npm", claude_code),
    "Codex": Client("@openai/codex", "npm", codex),
    "opencode": Client("opencode-ai", "npm", opencode),
    "aider": Client("aider-chat", "venv", aider),
    "Vercel's AI SDK": Client(
        "ai",
        "npm",
        node_script("vercel_session.mjs"),
        further=("@ai-sdk/openai", "@ai-sdk/openai-compatible", "zod"),
    ),
    "Vercel's AI SDK, default provider, two turns": Client(
        "ai",
        "npm",
        node_script("vercel_default_session.mjs"),
        further=("@ai-sdk/openai", "@ai-sdk/openai-compatible", "zod"),
        right=rf"first: The note says: {SECRET}\s+second: The note says: {SECRET}",
    ),
    "Outlines, as with SGLang": Client(
        "outlines", "venv", with_embedded("outlines_session.py"), further=("openai",), right="fit: 8 of 8"
    ),
    "LiteLLM": Client("litellm", "venv", python_script("litellm_session.py"), further=("mcp",)),
    "Pydantic AI": Client(
        "pydantic-ai-slim", "venv", python_script("pydantic_ai_session.py"), further=("openai",)
    ),
    "LlamaIndex": Client("llama-index-llms-openai-like", "venv", python_script("llama_index_session.py")),
    "llm": Client("llm", "venv", python_script("llm_session.py")),
    "OpenAI's Agents SDK": Client("openai-agents", "venv", python_script("agents_session.py")),
    "OpenAI's Agents SDK, a cut call": Client(
        "openai-agents",
        "venv",
        python_script("agents_cut_session.py"),
        right=(
            rf"cut: \['write_note'\]\s+chat: The note says: {SECRET}\s+"
            rf"responses, first turn: .*max_output_tokens.*\s+responses: The note says: {SECRET}"
        ),
    ),
    "Instructor and LangChain, structured answers": Client(
        "instructor",
        "venv",
        with_embedded("structured_session.py"),
        further=("langchain-openai",),
        right="fit: 12 of 12",
    ),
    "promptfoo": Client("promptfoo", "npm", promptfoo, right="2 passed"),
    "lm-eval": Client(
        "lm-eval", "venv", with_embedded("lm_eval_session.py"), right="right: 8 of 8", extra="api"
    ),
    "GuideLLM": Client("guidellm", "venv", with_embedded("guidellm_session.py"), right="answers: 6 of 6"),
    "AIPerf": Client("aiperf", "venv", with_embedded("aiperf_session.py"), right="answers: 6 of 6"),
}
