"""What clients, officers, operators and the server send to one another, byte for byte:
docs/protocol.md in code.
"""

from expunge._lazy import lazy_names

__all__: list[str] = []

__getattr__, __dir__ = lazy_names(__name__, {}, modules=("carrier", "token"))
