"""Means to test Expunge, and what is built on it: a whole federation that can be simulated."""
