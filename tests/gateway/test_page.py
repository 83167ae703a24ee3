"""The page's files and /stats, as a client without a browser sees them."""

from __future__ import annotations

import http.client
import json
import re
from importlib.resources import files

import pytest
from service import PATIENCE_S

from firelane.gateway.tenants.keyfile import hashed
from firelane.wire.frames import Progress

PAGE = {file.name: file.read_text() for file in files("firelane.gateway").joinpath("page").iterdir()}
SCRIPTS = sorted(name for name in PAGE if name.endswith(".js"))


def test_root_is_the_page(service):
    answer = service.http.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.text == PAGE["index.html"]


@pytest.mark.parametrize(("name", "kind"), [("app.js", "text/javascript"), ("base.css", "text/css")])
def test_files_have_their_types(service, name, kind):
    answer = service.http.get(f"/page/{name}")
    assert answer.text == PAGE[name]
    assert answer.headers["content-type"] == f"{kind}; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_all_that_the_page_names_is_served(service):
    named = re.findall(r'(?:src|href)="(/[^"#]*)"', PAGE["index.html"])
    assert len(named) > 5
    for script in SCRIPTS:
        named += [f"/page/{name}" for name in re.findall(r'from "\./([^"]+)"', PAGE[script])]
    assert {service.http.get(path).status_code for path in set(named)} == {200}


def test_only_own_sources_may_run(service):
    policy = service.http.get("/").headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    html = PAGE["index.html"]
    assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\bstyle=|\bon\w+=", html) == []


def test_nothing_comes_from_elsewhere():
    """The name of SVG's namespace is no address that a browser asks."""
    for name, text in PAGE.items():
        assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)\S+|\burl\(|@import", text) == [], name


def test_text_is_never_parsed_as_html():
    for name in SCRIPTS:
        bad = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\(|new Function"
        assert re.findall(bad, PAGE[name]) == [], name


def test_links_of_answers_are_made_in_one_place():
    """The module that checks their protocol, inline.js, alone makes links of answers; library.js uses an
    address to save files."""
    assert [name for name in SCRIPTS if re.search(r"\bhref\b", PAGE[name])] == ["inline.js", "library.js"]


def test_files_are_short():
    assert {name: text.count("\n") for name, text in PAGE.items() if text.count("\n") > 400} == {}


def test_unchanged_file_is_not_sent_again(service):
    first = service.http.get("/page/app.js")
    again = service.http.get("/page/app.js", headers={"if-none-match": f'W/"old", {first.headers["etag"]}'})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    assert service.http.get("/page/app.js", headers={"if-none-match": '"old"'}).status_code == 200
    assert service.http.get("/health").status_code == 200  # the connection is still in step


def test_head(service):
    answer = service.http.head("/")
    assert (answer.status_code, answer.content) == (200, b"")
    assert int(answer.headers["content-length"]) == len(PAGE["index.html"].encode())


@pytest.mark.parametrize(
    "path",
    [
        "/page/",
        "/page/index.html",
        "/page/../handlers/page.py",
        "/page/..%2fapp.py",
        "/page/%2e%2e/app.py",
        "//page/app.js",
        "/page/app.js/",
        "/page//etc/passwd",
    ],
)
def test_no_path_leads_out(service, path):
    assert raw_status(service, path) == 404


def raw_status(service, path: str) -> int:
    """The path as it stands: httpx would tidy it."""
    connection = http.client.HTTPConnection("127.0.0.1", service.gateway.port, timeout=PATIENCE_S)
    connection.request("GET", path)
    status = connection.getresponse().status
    connection.close()
    return status


def stats(service) -> dict:
    answer = service.http.get("/stats")
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    return answer.json()


def test_stats_count_what_happens(service):
    before = stats(service)
    assert before["tokens"] == {"prompt": 0, "generated": 0}
    assert before["models"] == ["toy"]
    assert service.http.post("/v1/completions", json={"prompt": "say", "max_tokens": 5}).status_code == 200
    after = stats(service)
    assert after["started"] == before["started"]
    assert after["now_s"] > before["now_s"]
    assert after["tokens"] == {"prompt": 4, "generated": 5}
    assert after["requests"]["ended"] == {"length": 1}
    assert sum(after["ttft"]["counts"]) == 1
    assert sum(after["itl"]["counts"]) == 4
    assert len(after["itl"]["counts"]) == len(after["itl"]["bounds_s"]) + 1
    assert after["kv_blocks"] == {"used": 5, "total": 100}
    assert after["prefix_cache"] == {"queries": 50, "hits": 20}
    (tenant,) = after["tenants"]
    assert (tenant["requests"], tenant["prompt_tokens"], tenant["generated_tokens"]) == (1, 4, 5)


def test_stats_of_a_ready_engine(service):
    engine = stats(service)["engine"]
    assert engine["state"] == "ready"
    assert (engine["max_num_seqs"], engine["max_model_len"], engine["block_tokens"]) == (8, 512, 16)
    assert engine["loading"] is None


def test_stats_while_the_engine_loads(service):
    service.call(service.replica.attach(service.run(service.engine.connect)))
    service.run(service.engine.send, Progress("compile", 3, 10))
    service.wait_for(lambda: service.link.figures.progress is not None)
    engine = stats(service)["engine"]
    assert engine["state"] == "loading"
    assert engine["reason"] == "compile 3 of 10"
    assert engine["loading"] == {"stage": "compile", "done": 3, "total": 10, "unit": ""}
    assert engine["max_num_seqs"] is None
    assert service.http.get("/").status_code == 200


def test_stats_while_there_is_no_engine(service):
    service.run(service.engine.die)
    service.wait_for(lambda: service.link.ready is None or service.link.state.value == "dead")
    assert stats(service)["engine"]["state"] == "down"


def test_keys_guard_stats_but_not_the_page(make_service, tmp_path):
    keys = {"boss": "k" * 40, "acme": "a" * 40}
    tenants = {name: {"keys": [hashed(key)], "admin": name == "boss"} for name, key in keys.items()}
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"tenants": tenants}))
    service = make_service(api_keys=file)
    assert service.http.get("/").status_code == 200
    assert service.http.get("/page/app.js").status_code == 200

    def status(key: str | None) -> int:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        return service.http.get("/stats", headers=headers).status_code

    assert [status(None), status("wrong"), status(keys["acme"]), status(keys["boss"])] == [401, 401, 403, 200]
