"""The server: its store, and the service that every carrier reaches."""
