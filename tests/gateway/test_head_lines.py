"""Lines of a request's head that may, and may not, be given twice."""

from __future__ import annotations

import pytest

from firelane.gateway.http.exchange import HttpError, Request
from firelane.gateway.http.head import add_field, check_head

ONCE = [
    *("authorization", "content-encoding", "content-length", "content-type", "expect", "host"),
    *("origin", "traceparent", "transfer-encoding", "upgrade", "x-request-id"),
]


@pytest.mark.parametrize("name", ONCE)
def test_a_second_line_is_refused_and_the_first_stays(name):
    request = Request()
    add_field(request, name.encode(), b"first")
    with pytest.raises(HttpError, match=f"{name} is given twice") as refused:
        add_field(request, name.encode(), b"second")
    assert refused.value.status == 400
    assert request.headers[name.encode()] == b"first"


@pytest.mark.parametrize("name", ["accept", "x-forwarded-for", "cache-control"])
def test_lines_of_a_list_are_joined(name):
    request = Request()
    add_field(request, name.encode(), b"a")
    add_field(request, name.encode(), b"b")
    assert request.headers[name.encode()] == b"a, b"


def headed(path, version="1.1", **headers):
    request = Request()
    request.path, request.version = path, version
    request.headers = {b"host": b"here"} | {name.encode(): value for name, value in headers.items()}
    check_head(request)
    return request


@pytest.mark.parametrize(
    ("target", "host", "path", "query"),
    [
        (b"/a?b=/c", b"here", b"/a", b"b=/c"),
        (b"*", b"here", b"*", b""),
        (b"http://there/a?b", b"there", b"/a", b"b"),
        (b"HTTPS://there:1", b"there:1", b"/", b""),
        (b"http://there?x=/y", b"there", b"/", b"x=/y"),
    ],
)
def test_the_path_of_each_form_of_a_target(target, host, path, query):
    request = headed(target)
    assert (request.headers[b"host"], request.path, request.query) == (host, path, query)


@pytest.mark.parametrize(
    ("target", "version", "status"),
    [(b"/", "2.0", 505), (b"/", "1.2", 505), (b"a", "1.1", 400), (b"", "1.1", 400)],
)
def test_what_is_not_spoken_here(target, version, status):
    with pytest.raises(HttpError) as refused:
        headed(target, version)
    assert refused.value.status == status
