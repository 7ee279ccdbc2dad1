"""How models mark their reasoning, by format."""
