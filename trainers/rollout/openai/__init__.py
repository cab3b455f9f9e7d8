"""The engine for endpoints that speak OpenAI's chat completions."""
