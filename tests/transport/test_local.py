"""The local carrier is the whole service: the same bytes, durable, and open to be served otherwise
afterwards.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from expunge.errors import StoreBusyError
from expunge.evidence import published_head
from expunge.server.state import Settings
from expunge.transport.local import LocalCarrier
from expunge.wire.carrier import Carrier
from support.federation import Federation


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    federation = Federation(tmp_path / "server")
    federation.enrol("clinic").send(federation.draw(3))
    federation.close()
    return federation


def test_it_opens_a_folder_and_leaves_it_folded(federation: Federation) -> None:
    client, samples = federation.clients["clinic"], federation.draw(2)
    carrier: Carrier = LocalCarrier.open(federation.path, settings=Settings(erase_within=3600))
    data = client.request(samples, client.retained[:1])
    answer = carrier.request(data)
    assert carrier.request(data) == answer
    federation.service = carrier
    client.settled(answer, samples, client.retained[:1])
    head, certificate = published_head.read(carrier.head() or b"", federation.chain())
    assert carrier.head(head.digest) is None
    assert certificate.count == 4
    federation.check()
    with pytest.raises(StoreBusyError):
        LocalCarrier.open(federation.path, timeout=0.0)
    carrier.close()
    federation.service = federation.opened()
    assert federation.service.status()["journal"] == 0
    federation.check()
    federation.close()


def test_a_service_is_a_carrier(federation: Federation) -> None:
    federation.service = federation.opened()
    carrier: Carrier = federation.service
    client, samples = federation.clients["clinic"], federation.draw(1)
    client.settled(carrier.request(client.request(samples)), samples)
    assert federation.service.status()["samples"] == 4
    federation.close()
