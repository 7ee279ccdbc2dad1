"""The HTTP server: route groups on FastAPI over one AsyncLLM, behind one boundary."""
