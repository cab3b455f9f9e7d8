"""Serves environments by other protocols: MCP and OpenEnv's."""
