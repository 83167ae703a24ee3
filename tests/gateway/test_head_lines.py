"""Lines of a request's head that may, and may not, be given twice."""

from __future__ import annotations

import pytest

from firelane.gateway.http.exchange import HttpError, Request
from firelane.gateway.http.head import add_field

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
