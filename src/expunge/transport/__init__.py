"""Carriers: the ways from clients and offices to the server. All carry the same bytes."""

from expunge._lazy import lazy_names

__all__: list[str] = []

__getattr__, __dir__ = lazy_names(__name__, {}, modules=("flower", "http", "local"))
