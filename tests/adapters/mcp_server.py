"""A server of a tool, on stdin and stdout: a sum, from 0."""

import os

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server, total = MCPServer("sums", log_level="CRITICAL"), [0]


@server.tool()
def add(number: int) -> int:
    """Adds a number; returns the sum."""
    if number < 0:
        raise ToolError("the number has to be positive")
    if number == 666:
        os._exit(1)
    total[0] += number
    return total[0]


if __name__ == "__main__":
    server.run()
