"""The apps of Expunge, for `flwr run`."""
