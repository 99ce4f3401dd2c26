"""What keeps clients' statistics from the server and from one another."""
