from __future__ import annotations

import json
import os

import pytest

from firelane.errors import AuthenticationError, UsageError
from firelane.gateway.tenants.keyfile import hashed, new_key, read_key_file
from firelane.gateway.tenants.registry import ApiKeyAuth

KEY = "fl-0123456789abcdefghij"


def write(path, text):
    path.write_text(text)
    return path


def entry(key=KEY, more=""):
    return f'[tenants.acme]\nkeys = ["{hashed(key)}"]\n{more}\n'


def test_toml_and_json_say_the_same(tmp_path):
    more = "requests_per_minute = 3\nmodels = ['m']\nweight = 2.5\nadmin = true"
    one = read_key_file(write(tmp_path / "k.toml", entry(more=more))).find(KEY.encode())
    values = {"requests_per_minute": 3, "models": ["m"], "weight": 2.5, "admin": True}
    text = json.dumps({"tenants": {"acme": {"keys": [hashed(KEY)], **values}}})
    assert read_key_file(write(tmp_path / "k.json", text)).find(KEY.encode()) == one
    assert one is not None
    assert (one.name, one.weight, one.admin, one.requests_per_minute) == ("acme", 2.5, True, 3)
    assert one.may_use("m")
    assert not one.may_use("other")


def test_keys_of_a_tenant_share_a_salt_that_is_its_own(tmp_path):
    second = new_key()
    text = entry() + f'[tenants.b]\nkeys = ["{hashed(second)}"]\n'
    text = text.replace('"]\n', f'", "{hashed(new_key())}"]\n', 1)
    ring = read_key_file(write(tmp_path / "k", text))
    acme, other = ring.find(KEY.encode()), ring.find(second.encode())
    assert acme is not None
    assert other is not None
    assert len(acme.salt) == 16
    assert acme.salt != other.salt
    assert ring.find(b"fl-nobody") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tenants", "Expected"),
        ("[tenants.acme]\nkeys = ['plain']", "not sha256:"),
        ("[tenants.acme]\nkeys = ['sha256:00']", "64 hex digits"),
        ("[tenants.acme]\nrpm = 5", "unknown field `rpm`"),
        ("[tenants.acme]\nweight = 0", "weight"),
        ("[tenants.'a b']", "cannot be a tenant's name"),
        ("[tenants.open]", "cannot be a tenant's name"),
        (entry() + entry().replace("acme", "b"), "stands in the file already"),
    ],
)
def test_a_wrong_file_is_refused_with_its_name(tmp_path, text, message):
    path = write(tmp_path / "keys.toml", text)
    with pytest.raises(UsageError, match=message) as caught:
        read_key_file(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        read_key_file(tmp_path / "absent")


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "keys.toml")
    with pytest.raises(UsageError, match=r"keys\.toml: not a regular file"):
        read_key_file(tmp_path / "keys.toml")


def test_short_keys_are_refused():
    with pytest.raises(UsageError, match="at least 20"):
        hashed("secret")
    assert hashed(new_key()) != hashed(new_key())


def test_identify_and_reload(tmp_path, caplog):
    path = write(tmp_path / "keys.toml", entry())
    tenants = ApiKeyAuth(path, lambda: 0.0)
    bearer = {b"authorization": b"bearer " + KEY.encode()}
    assert tenants.identify(bearer).name == "acme"
    for headers in ({}, {b"authorization": b"Basic " + KEY.encode()}, {b"authorization": b"Bearer x"}):
        with pytest.raises(AuthenticationError):
            tenants.identify(headers)
    for number, text in enumerate(("broken", "a = " + "[" * 100_000), 1):
        write(path, text)
        tenants.reload()
        assert caplog.text.count("keys_not_reloaded") == number
        assert tenants.identify(bearer).name == "acme"
    other = new_key()
    write(path, entry(other))
    tenants.reload()
    with pytest.raises(AuthenticationError):
        tenants.identify(bearer)
    assert tenants.identify({b"authorization": f"Bearer {other}".encode()}).name == "acme"
