"""`expunge experiment`, which Expunge finds by an entry point."""
