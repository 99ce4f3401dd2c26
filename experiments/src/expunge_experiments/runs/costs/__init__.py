"""The experiment `costs`: bytes and server time against d and r."""
