"""Which extra is named when an import fails, and when none is."""

from __future__ import annotations

from importlib import import_module

import pytest

from expunge.errors import MissingExtraError, requires_extra


def test_a_missing_library_is_reported_with_the_extra_to_install() -> None:
    with (
        pytest.raises(MissingExtraError, match=r"Flower needs it: pip install 'expunge\[flower\]'"),
        requires_extra("flower", "Flower"),
    ):
        import_module("no_such_library")


def test_a_missing_module_of_our_own_is_not_blamed_on_an_extra() -> None:
    with (
        pytest.raises(ModuleNotFoundError) as caught,
        requires_extra("server", "Serving over HTTP"),
    ):
        import_module("expunge.no_such_module")
    assert not isinstance(caught.value, MissingExtraError)
