"""How octavo/tiny-omni was made from octavo/tiny: see README.md."""
