"""Programs that take memory which no figures of a process show."""

from __future__ import annotations

HELD = """
import ctypes, mmap, os
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = libc.shmat.restype = ctypes.c_void_p
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
def held(size=16 << 20, flags=0x21, descriptor=-1):
    at = libc.mmap(None, ctypes.c_size_t(size), 3, flags, descriptor, ctypes.c_long(0))
    if at == ctypes.c_void_p(-1).value: raise OSError(ctypes.get_errno(), "refused")
    ctypes.memset(at, 120, size)
    libc.munmap(at + 4096, size - 4096)  # the memory stays while a page of it is mapped
def shm(size=16 << 20):
    number = libc.shmget(0, ctypes.c_size_t(size), 0o1600)
    if number < 0: raise OSError(ctypes.get_errno(), "refused")
    ctypes.memset(libc.shmat(number, None, 0), 120, size)
def file(size=16 << 20):
    os.write(libc.memfd_create(b"", 0), bytes(size)) or 1 / 0
total = 0
try:
    while total < 600: TAKE; total += 16
except (OSError, ZeroDivisionError): pass
print(total)
"""
"""Takes memory that no process's own figures show, 16 MiB at a time until that is refused; prints how many."""
WAYS = {
    "anonymous maps that are shared": "held()",
    "the same with validated flags": "held(flags=0x23)",
    "a device of zeros": "held(flags=1, descriptor=os.open('/dev/zero', os.O_RDWR))",
    "segments of System V": "shm()",
    "files in memory without a name": "file()",
    "huge pages": "held(flags=0x40022)",
    "sets of semaphores": "[libc.semget(0, 32000, 0o1600) + 1 or os.open('', 0) for _ in range(8)]",
}
