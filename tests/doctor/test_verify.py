"""doctor --verify: every file of the cache is read, and what is damaged is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from firelane.cli import main
from firelane.doctor.verify import verify_cache
from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from firelane.native.toolchain import append_digest
from firelane.weights.packing.loader import load_packed
from firelane.weights.storage import checked_json
from tests.models.families import make_checkpoint


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    model = make_checkpoint("llama2", "bfloat16", tmp_path / "model")
    load_packed(load_program(read_config(model)), model, tmp_path / "cache").close()
    library = tmp_path / "cache" / "kernels" / "abc.so"
    library.parent.mkdir(exist_ok=True)
    library.write_bytes(b"library" * 100)
    append_digest(library, "abc")
    checked_json.write(tmp_path / "cache" / "estimates" / "abc.json", {"some": "thing"})
    return tmp_path / "cache"


def packed(cache: Path) -> list[Path]:
    """The files that the doctor looks at; kernels that packing itself has compiled are among them."""
    kinds = ("weights/*.weights", "weights/*.json", "estimates/*.json", "kernels/*.so")
    return [path for kind in kinds for path in cache.glob(kind)]


def test_a_sound_cache(cache: Path) -> None:
    found = verify_cache(cache)
    assert found.damaged == ()
    assert found.files == len(packed(cache)) >= 4
    assert found.nbytes == sum(path.stat().st_size for path in packed(cache))


def test_no_cache(tmp_path: Path) -> None:
    assert verify_cache(tmp_path / "absent").files == 0


@pytest.mark.parametrize("place", [0.0, 0.3, 0.99])
def test_one_bit_anywhere_is_found(cache: Path, place: float) -> None:
    for path in packed(cache):
        whole = path.read_bytes()
        data = bytearray(whole)
        data[int(place * len(data))] ^= 4
        path.write_bytes(data)
        assert verify_cache(cache).damaged == (str(path),)
        path.write_bytes(whole)


def test_a_file_under_the_name_of_another_is_found(cache: Path) -> None:
    (cache / "kernels" / "abc.so").rename(cache / "kernels" / "abd.so")
    assert verify_cache(cache).damaged == (str(cache / "kernels" / "abd.so"),)


def test_the_command(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FIRELANE_CACHE_DIR", str(cache))
    assert main(["doctor", "--verify"]) == 0
    (cache / "kernels" / "abc.so").write_bytes(b"")
    assert main(["doctor", "--verify"]) == 1
    assert "abc.so" in capsys.readouterr().out
    assert main(["doctor", "--verify", "--json"]) == 1
    assert '"damaged"' in capsys.readouterr().out
