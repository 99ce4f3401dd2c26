"""The demo does what it says."""

from __future__ import annotations

import pytest

from expunge.cli import demo


def test_every_step_of_the_demo_equals_retraining(capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main() == 0
    printed = capsys.readouterr().out
    assert printed.count("yes, bit for bit") == 10
    assert printed.count("Back to the first digest: yes") == 2
    assert "NO" not in printed


def test_the_demo_fails_when_a_digest_differs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    real = demo.expunge.solve
    monkeypatch.setattr(demo.expunge, "solve", lambda statistics: real(statistics.under(statistics.spec.with_gamma(11.0))))
    assert demo.main() == 1
    assert "NO" in capsys.readouterr().out
