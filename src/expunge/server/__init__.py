"""The server: its store, and the service that every carrier reaches."""

from expunge._lazy import lazy_names

__all__: list[str] = []

__getattr__, __dir__ = lazy_names(__name__, {}, modules=("http", "state"))

# The files of its folder, named here so that finding the folder loads nothing of the server.
DATABASE, VAULT, KEY, MARK = "server.db", "server.vault", "server.key", "server.mark"
RESERVE = "server.reserve"
