"""A small model that sees and hears, made from octavo/tiny: see README.md."""
