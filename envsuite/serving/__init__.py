"""Environments for other machines: an HTTP server of sessions (``envsuite serve``)."""
