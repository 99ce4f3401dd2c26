"""What monitoring sees of a full disk and of a wrong clock."""

from __future__ import annotations

import datetime
import json
import re
import time
from email.utils import formatdate
from pathlib import Path

import pytest

from expunge.server.http.tls import make_tls, out_of_date
from expunge.storage.machine import mounted
from expunge.transport.http import HttpCarrier
from support.disks import SmallDisk
from support.https_server import Served, served

NEED = 1 << 20


def gauge(server: Served, name: str) -> float:
    text = server.ask("GET", "/metrics").data.decode()
    found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
    assert found is not None
    return float(found.group(1))


def test_a_full_disk_is_not_ready_and_says_why(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path)
    with mounted(tmp_path, disk), served(tmp_path, room=NEED) as server:
        client = server.site.client("ward", samples=8)
        assert server.ask("POST", "/v1/requests", client.request([0, 1])).status == 200
        assert server.ask("GET", "/readyz").status == 200
        assert gauge(server, "expunge_store_writable") == 1
        disk.fill(1000)
        ready = server.ask("GET", "/readyz")
        assert ready.status == 503
        reason = json.loads(ready.data)["reason"]
        assert "disk is full" in reason
        assert "Free " in reason
        assert str(tmp_path) not in reason  # anybody may ask
        assert gauge(server, "expunge_store_writable") == 0
        assert 0 <= gauge(server, "expunge_disk_free_bytes") <= 1000
        assert gauge(server, "expunge_store_answers") == 1
        refused = server.ask("POST", "/v1/requests", client.request([2], sequence=2))
        assert (refused.status, json.loads(refused.data)["code"]) == (507, "no-room")
        deleted = server.ask("POST", "/v1/requests", client.request([], [0], sequence=2))
        assert deleted.status == 200
        disk.fill(8 * NEED)
        server.site.service.upkeep.run_due()
        assert json.loads(server.ask("GET", "/readyz").data) == {"ready": True, "reason": ""}


@pytest.mark.parametrize("tells", [True, False])
def test_clients_tell_the_server_their_clock(tmp_path: Path, tells: bool) -> None:
    with served(tmp_path) as server:
        for name in ("north", "south"):
            client = server.site.client(name)
            date = {"Date": formatdate(time.time() - 86400.0, usegmt=True)} if tells else {}
            assert server.ask("POST", "/v1/sync", client.question(), **date).status == 200
        ahead = gauge(server, "expunge_clock_ahead_of_clients_seconds")
        assert ahead == (pytest.approx(86400.0, abs=60.0) if tells else 0.0)
        stranger = {"Date": "the day before yesterday"}
        assert server.ask("POST", "/v1/sync", client.question(), **stranger).status == 200


def test_the_carrier_tells_its_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    yesterday = formatdate(time.time() - 86400.0, usegmt=True)
    monkeypatch.setattr("expunge.transport.http.formatdate", lambda **_: yesterday)
    with served(tmp_path) as server:
        carrier = HttpCarrier(server.url, ca=server.ca)
        for name in ("north", "south"):
            carrier.sync(server.site.client(name).question())
        carrier.close()
        assert server.site.service.clocks.ahead_of_clients() == pytest.approx(86400.0, abs=60.0)


def test_a_certificate_that_is_not_valid_by_the_clock_is_named(tmp_path: Path) -> None:
    certificate = make_tls(tmp_path / "tls", ["localhost"]).certificate
    now = datetime.datetime.now(datetime.UTC).timestamp()
    assert not out_of_date(certificate, now)
    assert "has expired by this machine's clock" in out_of_date(certificate, now + 5 * 365 * 86400)
    assert "is not valid yet by this machine's clock" in out_of_date(certificate, now - 10 * 86400)
