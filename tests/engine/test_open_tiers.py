"""Tiers as an engine's configuration asks for them."""

from __future__ import annotations

import errno
import logging

import pytest

from firelane.engine.process import tiers
from firelane.engine.process.tiers import NO_TIERS, open_tiers
from firelane.engine_config import TiersConfig
from firelane.errors import UsageError


def memory_of(d):
    return d.executor.page_memory, d.executor.state_memory


def test_without_a_configuration_there_are_none(driver):
    assert open_tiers(None, driver().core, None, None, "m") is NO_TIERS


@pytest.mark.parametrize("sizes", [{}, {"state_bytes": 8, "num_snapshots": 9}], ids=["pages", "states"])
def test_the_drive_serves_the_next_engine(driver, request_of, tmp_path, sizes):
    config = TiersConfig(disk=tmp_path, disk_bytes=1 << 18)
    found = []
    for i in range(2):
        d = driver(**sizes)
        opened = open_tiers(config, d.core, *memory_of(d), "m")
        d.submit(request_of(i, range(17), seed=1))
        d.run()
        opened.close()
        found.append((d.tokens[i], d.cached[i]))
    assert found[0][0] == found[1][0]
    assert [cached for _, cached in found] == [0, 16]


def test_a_drive_that_fails_leaves_its_tier_out(driver, tmp_path, monkeypatch, caplog):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tiers, "open_disk", full)
    d = driver()
    config = TiersConfig(host_bytes=1 << 12, disk=tmp_path, disk_bytes=1 << 18)
    with caplog.at_level(logging.WARNING):
        opened = open_tiers(config, d.core, *memory_of(d), "m")
    assert list(opened.stats()) == ["host"]
    assert "No space left on device" in caplog.text
    opened.close()


@pytest.mark.parametrize(
    ("sizes", "has_pages", "has_states", "why"),
    [
        ({"state_bytes": 8, "num_snapshots": 4}, True, False, "does not reach all pages of its ranks"),
        ({}, False, False, "does not reach all pages of its ranks"),
        ({}, True, True, "give it more"),
    ],
    ids=["states of ranks", "ranks", "too small"],
)
def test_what_has_no_tiers_is_refused(driver, sizes, has_pages, has_states, why):
    d = driver(**sizes)
    pages, states = memory_of(d)
    given = pages if has_pages else None, states if has_states else None
    with pytest.raises(UsageError, match=why):
        open_tiers(TiersConfig(host_bytes=1), d.core, *given, "m")
