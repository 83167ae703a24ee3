"""A tenant's pages erased by all engines."""

from __future__ import annotations


def forget(service, **fields):
    answer = service.http.post("/admin/tenants/forget", json={"tenant": "acme", **fields})
    return answer.status_code, answer.json()


def test_engines_are_asked_and_answer(service):
    assert forget(service) == (200, {"tenant": "acme", "pages": 4, "engines": 1, "silent": 0})
    assert forget(service, tenant="") == (200, {"tenant": "", "pages": 0, "engines": 1, "silent": 0})


def test_an_engine_that_does_not_answer_is_told_of(service):
    service.engine.held = True
    assert forget(service, timeout_s=0.01) == (200, {"tenant": "acme", "pages": 0, "engines": 0, "silent": 1})


def test_an_engine_that_is_not_there_is_told_of(service):
    service.run(service.engine.die)
    service.wait_for(lambda: not service.link.serving)
    assert forget(service) == (200, {"tenant": "acme", "pages": 0, "engines": 0, "silent": 1})


def test_what_is_no_request_is_refused(service):
    for fields in ({"tenant": 5}, {"timeout_s": 0}):
        status, answer = forget(service, **fields)
        assert status == 400, answer
