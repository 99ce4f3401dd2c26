"""The ServerApp."""

from expunge.transport.flower.server_app import server_app

app = server_app()
