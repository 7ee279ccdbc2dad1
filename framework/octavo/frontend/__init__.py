"""LLM and AsyncLLM: requests in, outputs back, whatever way the engine is reached."""
