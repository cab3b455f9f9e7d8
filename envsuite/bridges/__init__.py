"""Environments in the protocols of others: MCP, and OpenEnv's."""
