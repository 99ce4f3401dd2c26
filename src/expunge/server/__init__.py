"""The server: its store, and the service that every carrier reaches."""

# The files of its folder, named here so that finding the folder loads nothing of the server.
DATABASE, VAULT, KEY = "server.db", "server.vault", "server.key"
