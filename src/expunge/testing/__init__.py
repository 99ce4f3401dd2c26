"""Means to test Expunge, and what is built on it: a whole federation that can be simulated."""

from expunge._lazy import lazy_names

__all__: list[str] = []

__getattr__, __dir__ = lazy_names(__name__, {}, modules=("simulation",))
