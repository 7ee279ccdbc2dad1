"""Tokens to text: incremental detokenizing, stop strings, and the outputs that callers see."""
