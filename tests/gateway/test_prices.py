from __future__ import annotations

import pytest

from firelane.errors import UsageError
from firelane.gateway.requests.usage_log import Prices

TEXT = "[models.m]\ninput = 1.0\ncached_input = 0.25\noutput = 4\n[models.'*']\ninput = 2"


def test_cost(tmp_path):
    path = tmp_path / "prices.toml"
    path.write_text(TEXT)
    prices = Prices(path)
    assert prices.of("m").cost(1_000_000, 400_000, 500_000) == pytest.approx(0.6 + 0.1 + 2.0)
    assert prices.of("else").cost(1_000_000, 400_000, 5) == pytest.approx(2.0)
    assert Prices(None).of("m").cost(10, 0, 10) == 0


def test_reload(tmp_path, caplog):
    path = tmp_path / "prices.toml"
    path.write_text(TEXT)
    prices = Prices(path)
    path.write_text("[models.m]\ninput = -1")
    prices.reload()
    assert "prices_not_reloaded" in caplog.text
    assert prices.of("m").input == 1.0
    path.write_text("[models.m]\ninput = 3")
    prices.reload()
    assert prices.of("m").input == 3
    with pytest.raises(UsageError, match="No such file"):
        Prices(tmp_path / "absent")
