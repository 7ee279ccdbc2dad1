"""The engine core and the clients that talk to it, in one process or two."""
