"""What clients, officers, operators and the server say to one another, byte for byte:
docs/protocol.md in code.
"""
