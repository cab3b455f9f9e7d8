"""Worker processes, which may crash or hang without affecting the program."""

from envsuite.core.processes.child import START_SECONDS, Child
from envsuite.core.processes.frames import Channel, frame, receive, receive_body

__all__ = ["START_SECONDS", "Channel", "Child", "frame", "receive", "receive_body"]
