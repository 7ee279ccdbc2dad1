"""``octavo run-batch``: files in OpenAI's batch format, answered without a server."""
