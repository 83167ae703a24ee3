"""Pulls of the hub's models over HTTP, from a stand-in on loopback."""

from __future__ import annotations

import asyncio
import fcntl
import types
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants, file_download
from huggingface_hub.utils import _http

from firelane.cli import main
from firelane.errors import FirelaneError, ModelNotFoundError
from firelane.sources import hub_cache
from firelane.sources.fetch import fetch
from firelane.sources.locate import ModelSource
from firelane.sources.resolve import resolve
from tests.models.families import make_checkpoint
from tests.sources.hub_server import NAME, Hub, serving

WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a tiny model, with one that is no part of it."""
    directory = make_checkpoint("llama_bias", "float32", tmp_path_factory.mktemp("model"))
    found = {path.name: path.read_bytes() for path in sorted(directory.iterdir())}
    return found | {"pytorch_model.bin": b"pickled", "additional_chat_templates/tool_use.jinja": b"t"}


@pytest.fixture
def hub(files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The hub, and an empty cache of its; nobody waits between two tries."""
    with serving(dict(files)) as hub:
        files_url = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", files_url)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        for name, value in (("HF_ENDPOINT", hub.url), ("HF_HUB_CACHE", str(tmp_path / "hub"))):
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
        monkeypatch.setenv("FIRELANE_CACHE_DIR", str(tmp_path / "cache"))
        for module in (file_download, _http):
            waits = types.SimpleNamespace(**{**vars(module.time), "sleep": lambda _: None})
            monkeypatch.setattr(module, "time", waits)
        yield hub


def is_here(files: dict[str, bytes], directory: Path | None) -> bool:
    assert directory is not None
    paths = [path for path in directory.rglob("*") if not path.is_dir()]
    found = {str(path.relative_to(directory)): path.read_bytes() for path in paths}
    return found == {name: data for name, data in files.items() if name != "pytorch_model.bin"}


def blobs() -> list[str]:
    return sorted(path.name for path in (hub_cache.repository(NAME) / "blobs").iterdir())


def test_firelane_pull_fetches_what_a_model_needs(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", NAME]) == 0
    assert "there in" in capsys.readouterr().out
    source = ModelSource(NAME, Path())
    assert is_here(hub.files, source.locate())
    assert sum(hub_cache.expected_blobs(NAME).values()) == sum(hub.sent.values())
    assert main(["pull", NAME]) == 0
    assert hub.sent[WEIGHTS] == len(hub.files[WEIGHTS]), "it is fetched once"


def test_a_cut_body_goes_on_where_it_broke_off(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    hub.cuts = [1000, 30_000]
    assert is_here(hub.files, resolve(NAME))
    assert hub.ranges == ["bytes=1000-", "bytes=31000-"]
    assert hub.sent[WEIGHTS] == len(hub.files[WEIGHTS])


def test_a_limit_of_requests_is_waited_for(hub: Hub) -> None:
    hub.limits = 2
    assert is_here(hub.files, resolve(NAME))


@pytest.mark.parametrize(
    ("status", "code", "says"),
    [
        (404, "RepoNotFound", r"no such model on the hub, or it is private: log in with `hf auth login`"),
        (401, "RepoNotFound", r"no such model on the hub, or it is private: log in"),
        (
            401,
            "",
            r"the hub refuses the token \(HF_TOKEN, or of an earlier login\): log in",
        ),
        (403, "GatedRepo", r"access is restricted; accept its licence"),
        (429, "", r"the hub limits the number of requests: try again later, or log in with `hf auth login`"),
        (503, "", r"the hub fails \(503\): try again later"),
    ],
)
def test_what_the_hub_refuses_is_one_line(hub: Hub, status: int, code: str, says: str) -> None:
    hub.refuses = status, code
    with pytest.raises(ModelNotFoundError, match=says) as error:
        resolve(NAME)
    assert "\n" not in str(error.value)
    assert ModelSource(NAME, Path()).locate() is None


def test_a_private_model_comes_with_its_token(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.token = "hf_secret"
    with pytest.raises(ModelNotFoundError, match="log in"):
        resolve(NAME)
    monkeypatch.setenv("HF_TOKEN", hub.token)
    assert is_here(hub.files, resolve(NAME))


def test_what_is_here_serves_where_the_hub_fails(hub: Hub) -> None:
    directory = resolve(NAME)
    hub.refuses = 503, ""
    assert resolve(NAME) == directory


def test_a_file_of_another_size_than_stated_is_none(hub: Hub) -> None:
    hub.declares[WEIGHTS] = len(hub.files[WEIGHTS]) + 1
    with pytest.raises(ModelNotFoundError, match="download failed: Consistency check failed"):
        resolve(NAME)
    assert ModelSource(NAME, Path()).locate() is None
    hub.declares.clear()
    assert is_here(hub.files, resolve(NAME))


def test_a_listed_file_that_is_gone_is_named(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = huggingface_hub.HfApi.list_repo_tree

    def with_one_more(*args, **options):
        found = list(entries(*args, **options))
        del hub.files[WEIGHTS]
        return found

    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_tree", with_one_more)
    with pytest.raises(ModelNotFoundError, match="download failed: 404"):
        resolve(NAME)


def test_a_pull_that_was_killed_leaves_nothing_behind(hub: Hub, tmp_path: Path) -> None:
    """Files that had come whole stay; the file that was on its way comes again."""
    reports: list[tuple[int, int]] = []

    def pull() -> asyncio.Task[None]:
        report = lambda done, total: reports.append((done, total))  # noqa: E731
        return asyncio.ensure_future(fetch(NAME, tmp_path / "cache", report, whole=True))

    async def scenario() -> None:
        hub.holds = 40_000
        first = pull()
        while not (hub.is_held.is_set() and hub.sent["config.json"] and reports):
            assert not first.done(), "it ended"
            await asyncio.sleep(0.01)
        first.cancel()
        await asyncio.wait([first])
        assert [name for name in blobs() if name.endswith(".incomplete")]
        hub.goes_on.set()
        await asyncio.wait_for(pull(), 120)

    asyncio.run(scenario())
    assert is_here(hub.files, ModelSource(NAME, tmp_path).locate())
    assert hub.sent["config.json"] == len(hub.files["config.json"])
    assert not [name for name in blobs() if name.endswith(".incomplete")]
    assert {total for _, total in reports} == {sum(hub_cache.expected_blobs(NAME).values())}


def test_a_file_that_another_process_fetches_is_left_alone(hub: Hub) -> None:
    resolve(NAME)
    folder = hub_cache.repository(NAME)
    whole = hub.blob(WEIGHTS)
    partial = [folder / "blobs" / f"{blob}.0a1b2c3d.incomplete" for blob in (whole, "gone")]
    resumable = folder / "blobs" / "gone.incomplete"
    for path in (*partial, resumable):
        path.write_bytes(b"part")
    lock = folder.parent / ".locks" / folder.name / f"{whole}.lock"
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        hub_cache.remove_leftovers(NAME)
    assert [path.exists() for path in (*partial, resumable)] == [True, False, True]


def test_a_pull_of_the_node_says_why_it_failed(hub: Hub, tmp_path: Path) -> None:
    hub.refuses = 403, "GatedRepo"
    with pytest.raises(FirelaneError, match="owner/tiny: access is restricted"):
        asyncio.run(fetch(NAME, tmp_path, lambda *_: None, whole=True))
