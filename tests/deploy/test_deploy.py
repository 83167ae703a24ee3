"""Files to deploy with: what they start is a command that exists, and linters that are there accept them."""

from __future__ import annotations

import configparser
import json
import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.deploy.serve_options import parsed

DEPLOY = Path(__file__).parents[2] / "deploy"
CONTAINERFILE = DEPLOY / "container" / "Containerfile"


def linter(name: str) -> str:
    beside = str(Path(sys.executable).parent)
    found = shutil.which(name, path=os.pathsep.join([beside, os.environ.get("PATH", "")]))
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def unit(name: str) -> dict[str, dict[str, str]]:
    parser = configparser.ConfigParser(interpolation=None, strict=False, delimiters=("=",))
    parser.optionxform = str  # pyright: ignore[reportAttributeAccessIssue]
    parser.read(DEPLOY / "systemd" / name)
    return {section: dict(parser[section]) for section in parser.sections()}


def seconds(text: str) -> int:
    return int(text.removesuffix("s"))


def test_the_unit_starts_a_server_that_takes_the_port_of_its_socket() -> None:
    service, port = unit("firelane.service"), unit("firelane.socket")["Socket"]["ListenStream"]
    program, *words = service["Service"]["ExecStart"].split()
    options = parsed([word for word in words if word != "$FIRELANE_ARGS"])
    assert program.endswith("/bin/firelane")
    assert (options.port, options.log_format) == (int(port), "json")
    assert service["Unit"]["Requires"] == "firelane.socket"
    assert service["Service"]["Type"] == "notify"
    groups = service["Service"]["Delegate"], service["Service"]["ProtectControlGroups"]
    assert groups == ("memory", "no")  # read-only, no engine would have a group of its own
    assert seconds(service["Service"]["TimeoutStopSec"]) > options.drain_timeout


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    verify = linter("systemd-analyze")
    for name in ("firelane.service", "firelane.socket"):
        text = (DEPLOY / "systemd" / name).read_text().replace("/opt/firelane/bin/firelane", "/bin/true")
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        [verify, "verify", str(tmp_path / "firelane.service")], capture_output=True, text=True, check=False
    )
    ours = [line for line in done.stderr.splitlines() if "firelane" in line]
    assert ours == []


def instructions(name: str) -> list[str]:
    text = CONTAINERFILE.read_text().replace("\\\n", "")
    return [line.removeprefix(name).strip() for line in text.splitlines() if line.startswith(name + " ")]


def test_the_image_starts_a_server_as_an_ordinary_user() -> None:
    (entry,), (command,) = instructions("ENTRYPOINT"), instructions("CMD")
    words = [*json.loads(entry), *json.loads(command)]
    options = parsed(words[1:])
    assert (words[0], options.host, options.allow_anonymous) == ("firelane", "0.0.0.0", True)
    assert instructions("USER") == ["10001"]
    assert instructions("EXPOSE") == [str(options.port)]


def test_the_image_is_made_of_files_that_are_there() -> None:
    root = DEPLOY.parent
    kept = {line[1:] for line in (CONTAINERFILE.parent / "Containerfile.dockerignore").read_text().split()}
    for copied in instructions("COPY"):
        if "--from" not in copied:
            for name in copied.split()[:-1]:
                assert (root / name).exists()
                assert name in kept


def test_the_image_may_have_the_nixl_that_the_package_asks_for() -> None:
    extras = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (wanted,) = (one.partition(";")[0] for one in extras["rdma"])
    (asked,) = (run for run in instructions("RUN") if "nixl" in run)
    assert instructions("ARG") == ['NIXL=""']
    assert asked.startswith('test -z "$NIXL" || ')
    assert shlex.split(asked)[-2:] == ["--no-deps", wanted]


def test_hadolint_accepts_the_image() -> None:
    done = subprocess.run(
        [linter("hadolint"), str(CONTAINERFILE)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_the_composition_is_of_this_image() -> None:
    (service,) = yaml.safe_load((DEPLOY / "container" / "compose.yaml").read_text())["services"].values()
    context = (DEPLOY / "container" / service["build"]["context"]).resolve()
    assert context / service["build"]["dockerfile"] == CONTAINERFILE
    options = parsed(["serve", *service["command"]])
    assert service["ports"] == [f"127.0.0.1:{options.port}:{options.port}"]
    assert seconds(service["stop_grace_period"]) > options.drain_timeout
