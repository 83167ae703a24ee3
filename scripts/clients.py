"""Drives the clients that docs/clients.md names, and prints a table of what works.

Each session of an assistant asks for the file `note.txt` of its folder: the scripted engine calls the
client's tool that reads files, the client runs it and sends the result, and the engine answers with what it
has read. A session is right when the client prints that. What measures or judges a model is given the
embedded one, and is right when it has found what its session says.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts"), str(ROOT / "tests" / "gateway")]

from client_list import CLIENTS, SESSION_S, Client, Place  # noqa: E402
from scripted_server import SECRET, ScriptedServer  # noqa: E402

FORMS = ("hermes", "qwen3-coder", "harmony")
INSTALL_S = 600
CONSTRAINTS = ("torch==2.13.0", "cuda-toolkit<0", "nvidia-cudnn-cu13<0")
"""For pip: no client needs a GPU, and the gigabytes of its libraries are not fetched. A client that wants
torch is installed where pip finds a build for CPUs (PIP_FIND_LINKS, PIP_EXTRA_INDEX_URL), and is told to be
missing elsewhere."""


def installed(client: Client, folder: Path) -> tuple[str, Path, Path]:
    """Its version, node_modules and interpreter; installed where it is not there yet, each client in a place
    of its own. Raises CalledProcessError, TimeoutExpired."""
    own = folder / client.package.replace("/", "-")
    modules, python = own / "node_modules", Path(sys.executable)
    if client.source == "pip":
        return importlib.metadata.version(client.package), modules, python
    if client.source == "venv":
        python = own / "bin" / "python"
        return _by_pip(client, own, python), modules, python
    card = modules / client.package / "package.json"
    if not card.exists():
        words = ("npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(own))
        _quietly(*words, client.package, *client.further)
    return str(json.loads(card.read_text())["version"]), modules, python


def _by_pip(client: Client, own: Path, python: Path) -> str:
    asked = [str(python), "-c", f"import importlib.metadata as m; print(m.version({client.package!r}))"]
    if not python.exists() or subprocess.run(asked, capture_output=True, check=False).returncode:
        _quietly(sys.executable, "-m", "venv", str(own))
        constraints = own / "constraints.txt"
        constraints.write_text("\n".join(CONSTRAINTS))
        name = f"{client.package}[{client.extra}]" if client.extra else client.package
        words = ("-m", "pip", "install", "--quiet", "--constraint", str(constraints))
        _quietly(str(python), *words, name, *client.further)
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def _quietly(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True, timeout=INSTALL_S)


def session(client: Client, url: str, modules: Path, python: Path) -> str:
    """Run a client's session; return what went wrong, or ""."""
    with tempfile.TemporaryDirectory() as work, tempfile.TemporaryDirectory() as home:
        (Path(work) / "note.txt").write_text(SECRET + "\n")
        try:
            said = client.run(Place(url, modules, python, Path(work), Path(home)))
        except subprocess.TimeoutExpired:
            return f"no end after {SESSION_S} s"
    return "" if re.search(client.right, said) else said.strip()[-1000:] or "no output"


def drive(client: Client, folder: Path, url: str) -> tuple[str, str]:
    """Its version ("" where it could not be installed), and what went wrong."""
    try:
        version, modules, python = installed(client, folder)
    except subprocess.CalledProcessError as error:
        return "", f"not installed: {error.stderr.strip()[-1000:]}"
    except subprocess.TimeoutExpired:
        return "", f"not installed within {INSTALL_S} s"
    return version, session(client, url, modules, python)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=CLIENTS, default=list(CLIENTS), metavar="NAME")
    default = ROOT / "build" / "clients"
    parser.add_argument("--folder", type=Path, default=default, help="of what is installed")
    parser.add_argument("--template", type=Path, help="chat template of a published model")
    parser.add_argument("--form", default="hermes", choices=FORMS, help="of that model's answers")
    arguments = parser.parse_args()
    folder: Path = arguments.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    rows, failures = [], []
    with ScriptedServer(arguments.template, arguments.form) as server:
        for name in arguments.only:
            client = CLIENTS[name]
            version, wrong = drive(client, folder, server.url)
            works = "yes" if not wrong else "no" if version else "not installed"
            rows.append(f"| {name} | `{client.package}` {version} | {works} |")
            print(rows[-1], file=sys.stderr, flush=True)
            if wrong:
                failures.append(f"{name}:\n{wrong}\nrequests:\n" + "\n".join(server.requests[-8:]))
            server.requests.clear()
    print("| client | package | works |\n|---|---|---|", *rows, sep="\n")
    print(*failures, sep="\n\n", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
