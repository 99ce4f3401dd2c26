"""What the server keeps: the one seam between the service and its storage.

`tables` says what a store must do, `sqlite` does it, `folder` opens it beside sealed files, vault
and signing key.
"""
