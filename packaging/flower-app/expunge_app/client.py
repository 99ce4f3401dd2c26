"""The ClientApp. Stores that keep no features need `client_app(recompute=...)`."""

from expunge.carriers.flower.clientapp import client_app

app = client_app()
