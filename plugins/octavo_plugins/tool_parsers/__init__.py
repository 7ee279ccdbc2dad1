"""How models write tool calls, by format."""
