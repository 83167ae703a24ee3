"""Pages of one tenant erased from a drive, and what is kept secret there."""

from __future__ import annotations

import errno
import os

import pytest

from firelane.errors import UsageError
from firelane.kv.prefix import tenant_id
from firelane.kv.tiers.cipher import NoCipher
from firelane.kv.tiers.disk import open_disk
from firelane.kv.tiers.encrypted import Encrypted, read_secret
from firelane.kv.tiers.erase import erase_tenant
from firelane.kv.tiers.segment import kind_directory
from tests.kv.tiers.pages_of_tiers import CIPHERS, KIND, disk, key, page, put, read


@pytest.fixture(params=CIPHERS)
def opened(tmp_path, request):
    """A tier with pages of two tenants, its directory, and what is needed to read it."""
    secret = b"s" * 32 if request.param == "encrypted" else None
    kind, made = KIND, NoCipher()
    if secret:
        made = Encrypted(secret, KIND.purpose)
        kind = KIND._replace(key_id=made.key_id)
    tier = open_disk(tmp_path, kind, made, num_slots=8)
    put(tier, 1, 2, tenant=tenant_id("acme"))
    put(tier, 3, tenant=tenant_id("other"))
    yield tier, tmp_path, kind, made, secret
    tier.close()


def test_a_tenants_pages_are_erased_from_files(opened):
    tier, directory, kind, made, secret = opened
    tier.close()
    erased = erase_tenant(directory, "acme", secret)
    assert (erased.pages, erased.left) == (2, {})
    pages = next(kind_directory(directory, kind).glob("*.pages")).read_bytes()
    assert not any(pages[: 2 * 8192])
    again = open_disk(directory, kind, made, num_slots=8)
    assert [again.contains(key(number)) for number in (1, 2, 3)] == [False, False, True]
    assert (read(again, key(3)) == page(3)).all()
    again.close()


def test_files_in_use_and_of_another_key_are_left(opened):
    tier, directory, kind, _, secret = opened
    erased = erase_tenant(directory, "acme", secret)
    assert erased.pages == 0
    assert "an engine uses it" in next(iter(erased.left.values()))
    tier.close()
    if kind.key_id:
        for wrong in (None, b"t" * 32):
            assert "another key" in next(iter(erase_tenant(directory, "acme", wrong).left.values()))
    next(kind_directory(directory, kind).glob("*.index")).write_bytes(b"something else")
    assert "no index" in next(iter(erase_tenant(directory, "acme", secret).left.values()))
    with pytest.raises(UsageError):
        erase_tenant(directory / "none", "acme", None)


def test_pages_that_a_drive_does_not_erase_are_told(tmp_path, monkeypatch, caplog):
    tier = disk(tmp_path)
    put(tier, 1, 2, 3, tenant=tenant_id("acme"))
    write = tier._segment.write
    bad = tier.index.find(key(2))[0]

    def failing(slot, data):
        if slot == bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        write(slot, data)

    monkeypatch.setattr(tier._segment, "write", failing)
    assert tier.forget(tenant_id("acme")) == 2
    assert "kv_disk_not_erased" in caplog.text
    assert [tier.contains(key(number)) for number in (1, 2, 3)] == [False] * 3
    tier.close()


def test_nothing_readable_is_on_an_encrypted_drive(tmp_path):
    tier = disk(tmp_path, cipher="encrypted")
    put(tier, 1)
    tier.close()
    content = b"".join(path.read_bytes() for path in kind_directory(tmp_path, KIND).iterdir())
    assert page(1).tobytes()[:64] not in content
    assert key(1)[1] not in content
    assert b"a" * 16 not in content
    other = open_disk(tmp_path, KIND, Encrypted(b"t" * 32, "test"), num_slots=8)
    assert read(other, key(1)) is None
    other.close()


def test_secrets_that_are_too_short_or_open_to_others(tmp_path):
    path = tmp_path / "secret"
    path.write_bytes(b"short")
    with pytest.raises(UsageError, match="32 random ones"):
        read_secret(path)
    path.write_bytes(b"s" * 32)
    path.chmod(0o644)
    with pytest.raises(UsageError, match="everybody may read it"):
        read_secret(path)
    path.chmod(0o600)
    assert read_secret(path) == b"s" * 32
    with pytest.raises(UsageError, match="No such file"):
        read_secret(tmp_path / "none")
