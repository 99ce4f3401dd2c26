"""What clients, officers, operators and the server send to one another, byte for byte:
docs/protocol.md in code.
"""
