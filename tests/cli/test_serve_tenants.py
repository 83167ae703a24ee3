"""`serve` with keys: refuses to be open by oversight, reloads on a signal, says what it is."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import httpx
import pytest

from firelane.bench.server import ServerProcess
from firelane.gateway.tenants.keyfile import hashed

FIRST, SECOND = "fl-first-0123456789abcdef", "fl-second-0123456789abcdef"
ASK = {"prompt": "def", "max_tokens": 2}


def firelane(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "firelane", *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "some.host"])
def test_an_open_server_is_for_this_machine_alone(host):
    done = firelane("serve", "--host", host, "--backend", "null")
    assert done.returncode == 2
    assert "--allow-anonymous" in done.stderr
    assert "Traceback" not in done.stderr


def test_broken_files_are_refused_at_the_start(tmp_path):
    path = tmp_path / "keys.toml"
    path.write_text("[tenants.acme]\nkey = 'x'")
    for option in ("--api-keys", "--prices"):
        done = firelane("serve", option, str(path), "--backend", "null", "--port", "0")
        assert done.returncode == 2
        assert str(path) in done.stderr.splitlines()[-1]


def test_keys():
    made = firelane("keys", "new", "acme")
    key = made.stderr.split()[-1]
    assert key.startswith("fl-")
    assert len(key) > 40
    assert key not in made.stdout
    assert made.stdout == f'[tenants."acme"]\nkeys = ["{hashed(key)}"]\n'
    assert firelane("keys", "hash", text=f"{key}\n").stdout == f"{hashed(key)}\n"
    assert firelane("keys", "new", "a b").returncode == 2
    assert firelane("keys", "hash", text="short\n").returncode == 2


def test_keys_are_read_again_on_sighup(tmp_path):
    path = tmp_path / "keys.toml"
    path.write_text(f'[tenants.acme]\nkeys = ["{hashed(FIRST)}"]')
    with ServerProcess(["--backend", "null", "--api-keys", str(path), "--log-format", "json"]) as server:

        def status(key: str) -> int:
            headers = {"authorization": f"Bearer {key}"}
            return httpx.post(
                f"{server.url}/v1/completions", json=ASK, headers=headers, timeout=600
            ).status_code

        def reload(text: str, event: str) -> None:
            path.write_text(text)
            seen = server.log.count(event)
            server.process.send_signal(signal.SIGHUP)
            until_s = time.monotonic() + 60
            while server.log.count(event) == seen and time.monotonic() < until_s:
                status(FIRST)

        assert (status(FIRST), status(SECOND)) == (200, 401)
        reload("broken", "keys_not_reloaded")
        assert (status(FIRST), status(SECOND)) == (200, 401)
        reload(f'[tenants.acme]\nkeys = ["{hashed(SECOND)}"]', "keys_reloaded")
        assert (status(FIRST), status(SECOND)) == (401, 200)
        lines = [json.loads(line) for line in server.log.splitlines()]
        assert {"config", "progress", "serving", "request_ended"} <= {line.get("event") for line in lines}
        assert FIRST not in server.log
        assert "needs no key" not in server.log


def test_an_open_server_says_so():
    with ServerProcess(["--backend", "null"]) as server:
        assert "needs no key" in server.log
