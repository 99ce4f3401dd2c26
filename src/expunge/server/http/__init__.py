"""The service over HTTP: the routes of docs/protocol.md, with TLS, limits, metrics and logs.

Needs the extra `server`.
"""

from expunge._lazy import lazy_names

__all__: list[str] = []

__getattr__, __dir__ = lazy_names(__name__, {}, modules=("limits", "run"))
