"""/v1/files: upload, list, download, delete, limits, what survives, whose is what."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import threading
import time
from contextlib import ExitStack

import openai
import pytest

from firelane.gateway.config import FileLimits, HttpLimits
from firelane.gateway.tenants.keyfile import hashed

LINES = b'{"custom_id": "a"}\n'
LIMITS = FileLimits(upload_bytes=300_000, tenant_bytes=500_000, tenant_files=4, tenant_uploads=2)


@pytest.fixture
def kept(make_service, tmp_path):
    return make_service(data_dir=tmp_path / "data", files=LIMITS)


@pytest.fixture
def tenants(make_service, tmp_path):
    """A server with the keys of two tenants, `ann` and `bob`."""
    keys = tmp_path / "keys.toml"
    names = {"ann": "sk-ann-000000000000000000000000", "bob": "sk-bob-000000000000000000000000"}
    keys.write_text("".join(f'[tenants.{name}]\nkeys = ["{hashed(key)}"]\n' for name, key in names.items()))
    service = make_service(data_dir=tmp_path / "data", files=LIMITS, api_keys=keys)
    clients = {name: service.openai.with_options(api_key=key) for name, key in names.items()}
    return service, clients


def upload(service, content=LINES, name="in.jsonl", **fields):
    form = {"purpose": "batch", **fields}
    return service.http.post("/v1/files", files={"file": (name, content)}, data=form)


def stored(tmp_path):
    return sorted(p.name for p in (tmp_path / "data" / "files").rglob("*") if p.is_file())


def test_life_of_a_file(kept, tmp_path):
    made = kept.openai.files.create(file=("lines.jsonl", LINES), purpose="batch")
    assert (made.filename, made.bytes, made.purpose, made.status) == (
        "lines.jsonl",
        len(LINES),
        "batch",
        "processed",
    )
    assert made.id.startswith("file-")
    assert kept.openai.files.retrieve(made.id) == made
    assert kept.openai.files.wait_for_processing(made.id).id == made.id
    answer = kept.openai.files.content(made.id)
    assert answer.content == LINES
    assert answer.response.headers["x-content-type-options"] == "nosniff"
    assert answer.response.headers["content-type"] == "application/octet-stream"
    assert stored(tmp_path) == [f"{made.id}.data", f"{made.id}.json"]
    assert kept.openai.files.delete(made.id).deleted
    assert stored(tmp_path) == []
    with pytest.raises(openai.NotFoundError):
        kept.openai.files.retrieve(made.id)


def test_list_is_paged(kept):
    ids = [kept.openai.files.create(file=(f"{i}", LINES), purpose="batch").id for i in range(4)]
    assert [f.id for f in kept.openai.files.list()] == ids[::-1]
    assert [f.id for f in kept.openai.files.list(order="asc", limit=1)] == ids
    page = kept.http.get("/v1/files", params={"limit": 3, "after": ids[3]}).json()
    assert [f["id"] for f in page["data"]] == ids[2::-1]
    assert (page["first_id"], page["last_id"], page["has_more"]) == (ids[2], ids[0], False)
    assert list(kept.openai.files.list(purpose="batch_output")) == []


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=99999", "limit=x", "limit=१", "order=up", "after=file-x", "offset=3", "a=1&" * 40],
)
def test_bad_query(kept, query):
    answer = kept.http.get(f"/v1/files?{query}")
    assert answer.status_code == 400, answer.text


def test_a_large_file_goes_by_the_disk(kept):
    """Beyond the limit of other bodies, in and out."""
    content = os.urandom(290_000)
    made = kept.openai.files.create(file=("b", content), purpose="batch")
    assert kept.openai.files.content(made.id).content == content
    head = kept.http.head(f"/v1/files/{made.id}/content")
    assert (head.status_code, head.content) == (200, b"")


def test_a_slow_reader_holds_little_memory(make_service, tmp_path):
    limits = HttpLimits(buffer_bytes=1 << 16)
    service = make_service(data_dir=tmp_path / "data", limits=limits)
    content = os.urandom(1 << 20) * 32
    made = service.openai.files.create(file=("b", content), purpose="batch")
    with service.http.stream("GET", f"/v1/files/{made.id}/content") as answer:
        pieces = answer.iter_raw()
        got = [next(pieces)]
        connections = service.gateway._connections
        service.wait_for(lambda: connections.unsent_bytes > 0)
        assert connections.unsent_bytes < 2 << 20
        got += pieces
    assert hashlib.sha256(b"".join(got)).digest() == hashlib.sha256(content).digest()


@pytest.mark.parametrize("stays", [True, False])
def test_a_slow_drive_holds_up_its_client_alone(make_service, tmp_path, monkeypatch, stays):
    from firelane.gateway.files.store import PendingFile

    service = make_service(data_dir=tmp_path / "data")
    tenant_files = service.gateway.services.files.tenant_files("")
    go, write, content = threading.Event(), PendingFile._write, os.urandom(1 << 20) * 24

    def slow(self, pieces):
        assert go.wait(60)
        write(self, pieces)

    monkeypatch.setattr(PendingFile, "_write", slow)
    purpose = b'\r\n--XX\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--XX--\r\n'
    body = PART + content + purpose
    client = socket.create_connection(("127.0.0.1", service.gateway.port))
    sender = threading.Thread(target=_send, args=(client, HEAD.replace(b"9000", b"%d" % len(body)) + body))
    sender.start()
    service.wait_for(lambda: tenant_files._used_bytes >= 1 << 20)
    assert service.http.post("/v1/completions", json={"prompt": "a"}).status_code == 200
    assert tenant_files._used_bytes < 3 << 20  # the rest waits in the sockets
    if stays:
        go.set()
        assert client.recv(4096).startswith(b"HTTP/1.1 200")
        made = service.http.get("/v1/files").json()["data"][0]
        assert service.http.get(f"/v1/files/{made['id']}/content").content == content
    else:
        client.shutdown(socket.SHUT_RDWR)
        go.set()
    sender.join()
    client.close()
    service.wait_for(lambda: len(stored(tmp_path)) == 2 * stays)
    service.wait_for(lambda: tenant_files._pending == 0)


def _send(client, data):
    with contextlib.suppress(OSError):
        client.sendall(data)


def test_expiry(kept, monkeypatch):
    form = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
    made = upload(kept, **form).json()
    assert made["expires_at"] == made["created_at"] + 3600
    same = kept.openai.files.create(
        file=("a", LINES), purpose="batch", expires_after={"anchor": "created_at", "seconds": 4000}
    )
    assert same.expires_at == same.created_at + 4000
    now = time.time() + 3700
    tenant_files = kept.gateway.services.files.tenant_files("")
    monkeypatch.setattr(tenant_files, "_clock", lambda: now)
    assert kept.http.get(f"/v1/files/{made['id']}").status_code == 404
    assert [f.id for f in kept.openai.files.list()] == [same.id]


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({"purpose": "fine-tune"}, "purpose"),
        ({"purpose": "assistants"}, "purpose"),
        ({"purpose": "batch_output"}, "purpose"),
        ({"purpose": "batch\0"}, "purpose"),
        ({"purpose": "x" * 9000}, "purpose"),
        ({"colour": "red"}, "colour"),
        ({"expires_after[seconds]": "3600"}, "expires_after[anchor]"),
        ({"expires_after[anchor]": "created_at"}, "expires_after[seconds]"),
        ({"expires_after[anchor]": "now", "expires_after[seconds]": "3600"}, "expires_after[anchor]"),
        ({"expires_after[anchor]": "created_at", "expires_after[seconds]": "3"}, "expires_after[seconds]"),
        ({"expires_after[anchor]": "created_at", "expires_after[seconds]": "-1"}, "expires_after[seconds]"),
        (
            {"expires_after[anchor]": "created_at", "expires_after[seconds]": "9" * 99},
            "expires_after[seconds]",
        ),
    ],
)
def test_bad_form(kept, tmp_path, form, param):
    answer = upload(kept, **form)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert len(answer.json()["error"]["message"]) < 1000
    assert stored(tmp_path) == []


BOUNDARY = {"content-type": "multipart/form-data; boundary=XX"}
HEAD = (
    b"POST /v1/files HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9000\r\n"
    b"content-type: multipart/form-data; boundary=XX\r\n\r\n"
)
PART = b'--XX\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\n'


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"", BOUNDARY),
        (b"garbage", BOUNDARY),
        (b"--XX--\r\n", BOUNDARY),
        (PART + b"unfinished", BOUNDARY),
        (PART + b"a\r\n--XX--", BOUNDARY),  # no purpose
        (PART.replace(b'; filename="f"', b"") + b"text\r\n--XX--\r\n", BOUNDARY),
        (PART + b"a\r\n" + PART + b"b\r\n--XX--\r\n", BOUNDARY),
        (b"--XX\r\n\r\nno headers\r\n--XX--\r\n", BOUNDARY),
        (b"--XX\r\ncontent-disposition: form-data\r\n\r\na\r\n--XX--\r\n", BOUNDARY),
        (b"--XX\r\n" + b"x-h: " + b"y" * 50_000 + b"\r\n\r\na\r\n--XX--\r\n", BOUNDARY),
        (b"--XX\r\n" + b"x: y\r\n" * 5000 + b"\r\na\r\n--XX--\r\n", BOUNDARY),
        (b"--XX\r\n\xff\xfe: \x00\r\n\r\na\r\n--XX--\r\n", BOUNDARY),
        (b'--XX\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n' * 50, BOUNDARY),
        (PART + b"a\r\n--XX--", {"content-type": "multipart/form-data"}),
        (PART + b"a\r\n--XX--", {"content-type": "multipart/form-data; boundary="}),
        (PART + b"a\r\n--XX--", {"content-type": "multipart/form-data; boundary=" + "b" * 5000}),
        (b'{"purpose": "batch"}', {"content-type": "application/json"}),
        (b"raw", {}),
    ],
)
def test_bad_bodies(kept, tmp_path, body, headers):
    answer = kept.http.post("/v1/files", content=body, headers=headers)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["message"]
    assert stored(tmp_path) == []
    assert upload(kept).status_code == 200


def test_empty_and_missing_file(kept):
    assert upload(kept, b"").json()["error"]["param"] == "file"
    assert kept.http.post("/v1/files", files={"purpose": (None, "batch")}).json()["error"]["param"] == "file"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("../../etc/passwd", "passwd"),
        ("..\\..\\boot.ini", "boot.ini"),
        ("/", "file"),
        ("..", ".."),
        ("a\u202eb", "ab"),
        ("名前.jsonl", "名前.jsonl"),
        ("n" * 400, "n" * 255),
    ],
)
def test_names_are_never_paths(kept, tmp_path, name, shown):
    made = kept.openai.files.create(file=(name, LINES), purpose="batch")
    assert made.filename == shown
    assert stored(tmp_path) == [f"{made.id}.data", f"{made.id}.json"]


@pytest.mark.parametrize(
    "file_id", ["x", "..", "%2e%2e%2flock", "%00", "a%0d%0ab", "file-" + "0" * 24, "a" * 3000]
)
def test_unknown_ids(kept, file_id):
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/content")):
        answer = kept.http.request(method, f"/v1/files/{file_id}{path}")
        assert answer.status_code == 404, (method, path, answer.text)
        assert "\n" not in answer.json()["error"]["message"]


def test_too_large(kept, tmp_path):
    answer = upload(kept, b"x" * 400_000)
    assert answer.status_code == 413
    over = upload(kept, b"x" * 310_000)  # fits the body's limit, not the file's
    assert over.status_code == 400
    assert "300000 bytes" in over.json()["error"]["message"]
    assert stored(tmp_path) == []


def test_quota_of_bytes_and_files(kept):
    first = upload(kept, b"x" * 290_000).json()["id"]
    full = upload(kept, b"x" * 290_000)
    assert full.status_code == 413
    assert full.json()["error"]["code"] == "file_quota_exceeded"
    kept.openai.files.delete(first)
    for _ in range(4):
        assert upload(kept).status_code == 200
    assert upload(kept).json()["error"]["code"] == "file_quota_exceeded"


def test_client_that_goes_leaves_nothing(kept, tmp_path):
    for _ in range(2):  # as many as may be under way
        with socket.create_connection(("127.0.0.1", kept.gateway.port)) as client:
            client.sendall(HEAD + PART + b"some lines\n" * 10)
            kept.wait_for(lambda: stored(tmp_path) != [])
        kept.wait_for(lambda: stored(tmp_path) == [])
    assert kept.gateway.services.files.tenant_files("")._used_bytes == 0
    assert upload(kept).status_code == 200


def test_uploads_at_the_same_time_are_bounded(kept, tmp_path):
    clients = [socket.create_connection(("127.0.0.1", kept.gateway.port)) for _ in range(2)]
    for client in clients:
        client.sendall(HEAD + PART)
    kept.wait_for(lambda: len(stored(tmp_path)) == 2)
    refused = upload(kept)
    assert refused.status_code == 429
    for client in clients:
        client.close()
    kept.wait_for(lambda: stored(tmp_path) == [])
    assert upload(kept).status_code == 200


def test_a_slow_upload_has_time_by_its_size(make_service, tmp_path):
    """A second for any upload, and more at 64 KiB/s: 200 kB are worth three seconds, a byte nothing."""
    service = make_service(data_dir=tmp_path / "data", limits=HttpLimits(receive_s=1))
    now_s = 1000.0
    service.gateway._connections.now_s = lambda: now_s  # stands still, whatever the machine does
    head = HEAD.replace(b"9000", b"900000")
    tenant_files = service.gateway.services.files.tenant_files("")
    with ExitStack() as stack:
        clients = [
            stack.enter_context(socket.create_connection(("127.0.0.1", service.gateway.port)))
            for _ in range(2)
        ]
        for client, size in zip(clients, (200_000, 1), strict=True):
            client.sendall(head + PART + b"x" * size + b"\r")  # held back: a boundary could begin with it
        service.wait_for(lambda: tenant_files._used_bytes == 200_001)
        now_s += 2
        service.run(service.gateway._connections.sweep)
        service.wait_for(lambda: tenant_files._used_bytes == 200_000)
        assert clients[1].recv(100).startswith(b"HTTP/1.1 408")
        assert len(stored(tmp_path)) == 1
    service.wait_for(lambda: stored(tmp_path) == [])


def test_tenants_see_their_own(tenants):
    service, clients = tenants
    ann, bob = clients["ann"], clients["bob"]
    made = ann.files.create(file=("a", LINES), purpose="batch")
    assert [f.id for f in bob.files.list()] == []
    for call in (bob.files.retrieve, bob.files.content, bob.files.delete):
        with pytest.raises(openai.NotFoundError):
            call(made.id)
    with pytest.raises(openai.BadRequestError) as raised:
        bob.batches.create(input_file_id=made.id, endpoint="/v1/completions", completion_window="24h")
    assert raised.value.param == "input_file_id"
    assert ann.files.content(made.id).content == LINES
    assert service.http.get("/v1/files").status_code == 401
    assert upload(service).status_code == 401


def test_files_survive_a_restart_and_leftovers_do_not(make_service, tmp_path):
    first = make_service(data_dir=tmp_path / "data")
    made = upload(first).json()
    first.call(first.gateway.close())
    owner = next((tmp_path / "data" / "files").iterdir())
    (owner / ("file-" + "1" * 24 + ".data")).write_bytes(b"no description")
    (owner / ("file-" + "2" * 24 + ".json")).write_bytes(b"no json")
    (owner / "abc.part").write_bytes(b"half an upload")
    (owner / "x.json.tmp").write_bytes(b"half a description")
    second = make_service(data_dir=tmp_path / "data")
    assert second.http.get("/v1/files").json()["data"] == [made]
    assert second.http.get(f"/v1/files/{made['id']}/content").content == LINES
    assert stored(tmp_path) == sorted(
        [f"{made['id']}.data", f"{made['id']}.json", "file-" + "2" * 24 + ".json"]
    )


def test_a_directory_has_one_server(make_service, tmp_path):
    first, second = (make_service(data_dir=tmp_path / "data") for _ in range(2))
    assert upload(first).status_code == 200
    for answer in (upload(second), second.http.get("/v1/files"), second.http.get("/v1/batches")):
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "no_storage"


def test_without_a_directory(service):
    for answer in (upload(service), service.http.get("/v1/files"), service.http.get("/v1/batches")):
        assert answer.status_code == 503
        assert "--data-dir" in answer.json()["error"]["message"]


def test_directory_that_cannot_be_made(make_service, tmp_path):
    (tmp_path / "data").write_text("a file")
    service = make_service(data_dir=tmp_path / "data")
    assert upload(service).json()["error"]["code"] == "no_storage"
    assert service.http.post("/v1/completions", json={"prompt": "a"}).status_code == 200


def test_full_drive(kept, monkeypatch):
    from firelane.gateway.files import store

    def fails(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "write_whole", fails)
    answer = upload(kept)
    assert answer.status_code == 503
    assert "No space left" in answer.json()["error"]["message"]
    monkeypatch.undo()
    assert upload(kept).status_code == 200
    assert len(kept.http.get("/v1/files").json()["data"]) == 1
