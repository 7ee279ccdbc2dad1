"""The processes of a server: how they begin, watch each other, and end."""
