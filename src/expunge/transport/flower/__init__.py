"""The Flower carrier: a ServerApp polls the nodes, and each node's ClientApp answers with the calls
that its agent makes.

Flower's server speaks first, and a ClientApp may be a new process for each message; an Expunge
client speaks first, and keeps what it must remember in its store. The agent of a node is therefore
run again for each message, and its calls travel in the reply; the answers come with the next
message. Only `records`, `client_app`, `server_app` and `inprocess` import flwr (extra `flower`).
"""

from expunge._lazy import lazy_names

__all__: list[str] = []

__getattr__, __dir__ = lazy_names(__name__, {}, modules=("client_app", "inprocess", "server_app"))
