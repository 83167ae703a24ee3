"""Options of kept streams."""

from __future__ import annotations

import pytest

from firelane.errors import UsageError
from firelane.gateway.config import GatewayConfig, StreamLimits
from firelane.options import fields


def test_values_of_a_file_reach_the_config() -> None:
    given = fields(GatewayConfig, {"stream_resume_s": 5.0, "tenant_streams_mib": 0})
    assert given == {"streams": StreamLimits(away_s=5.0, tenant_bytes=0)}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"away_s": 700.0}, "stream_resume_s is 700, more than max_stream_resume_s"),
        ({"away_s": 10.0, "most_away_s": 5.0}, "raise the second one"),
        ({"away_s": -1.0}, "away_s"),
        ({"keep_s": 0.0}, "keep_s"),
        ({"tenant_bytes": -1}, "tenant_bytes"),
        ({"all_bytes": 0}, "all_bytes"),
    ],
)
def test_wrong_values_are_refused(values: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        StreamLimits(**values)
