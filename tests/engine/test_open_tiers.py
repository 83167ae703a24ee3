"""Tiers as an engine's configuration asks for them."""

from __future__ import annotations

import errno
import logging

import numpy as np
import pytest

from firelane.contract import PageMemory
from firelane.engine import tiers
from firelane.engine.tiers import NO_TIERS, open_tiers
from firelane.engine_config import TiersConfig
from firelane.errors import UsageError


def memory_of(d):
    return PageMemory(pages=d.executor.kv.view(np.uint8), layout_id="chain")


def test_without_a_configuration_there_are_none(driver):
    assert open_tiers(None, driver().core, None, "m") is NO_TIERS


def test_the_drive_serves_the_next_engine(driver, request_of, tmp_path):
    config = TiersConfig(disk=tmp_path, disk_bytes=1 << 18)
    found = []
    for i in range(2):
        d = driver()
        opened = open_tiers(config, d.core, memory_of(d), "m")
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
        opened = open_tiers(config, d.core, memory_of(d), "m")
    assert list(opened.stats()) == ["host"]
    assert "No space left on device" in caplog.text
    opened.close()


@pytest.mark.parametrize(
    ("sizes", "has_memory", "why"),
    [
        ({"state_bytes": 8, "num_snapshots": 4}, True, "recurrent state"),
        ({}, False, "several ranks"),
        ({}, True, "give it more"),
    ],
    ids=["recurrent state", "ranks", "too small"],
)
def test_what_has_no_tiers_is_refused(driver, sizes, has_memory, why):
    d = driver(**sizes)
    with pytest.raises(UsageError, match=why):
        open_tiers(TiersConfig(host_bytes=1), d.core, memory_of(d) if has_memory else None, "m")
