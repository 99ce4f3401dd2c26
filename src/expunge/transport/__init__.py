"""Carriers: the ways from clients to the server. All carry the same bytes."""
