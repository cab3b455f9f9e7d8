"""Serves environments to other machines: an HTTP server of sessions (``envsuite serve http``)."""
