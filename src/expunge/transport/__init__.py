"""Carriers: the ways from clients and offices to the server. All carry the same bytes."""
