"""HTTP/1.1: from a connection to an exchange, its body, its errors and its description."""
