"""A client of OpenAI-compatible servers, for commands; loads neither torch nor an HTTP library."""

from octavo.client.address import Address, parse_address
from octavo.client.plain import ServerError, get_json, post_json, post_stream

__all__ = ["Address", "ServerError", "get_json", "parse_address", "post_json", "post_stream"]
