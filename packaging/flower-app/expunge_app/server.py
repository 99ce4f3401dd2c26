"""The ServerApp."""

from expunge.carriers.flower.serverapp import server_app

app = server_app()
