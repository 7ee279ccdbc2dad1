"""The conformance kit: proves a plugin, here and in other people's CI."""
