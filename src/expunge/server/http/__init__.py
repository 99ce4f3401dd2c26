"""The service over HTTP: the routes of docs/protocol.md, with TLS, limits, metrics and logs.

Needs the extra `server`.
"""
