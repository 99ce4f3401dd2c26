"""Storage: files that are whole or absent, and SQLite databases."""
