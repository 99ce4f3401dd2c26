"""The ClientApp. Stores that keep no features need `client_app(recompute=...)`."""

from expunge.transport.flower.client_app import client_app

app = client_app()
