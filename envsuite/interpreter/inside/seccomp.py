"""Which system calls a session may make: a list of those that it may, as a BPF program."""

from __future__ import annotations

import errno
import signal
import struct
from collections.abc import Iterator

from envsuite.interpreter.inside.kernel import NEW_CGROUP, NEW_IPC, NEW_NET, NEW_NS, NEW_PID, NEW_USER, NEW_UTS
from envsuite.interpreter.inside.syscalls import SyscallTable, machine

ALLOWED = """
    read write readv writev pread64 pwrite64 preadv pwritev lseek open openat creat close close_range dup dup2 dup3
    pipe pipe2 stat fstat lstat newfstatat statx access faccessat faccessat2 readlink readlinkat getdents getdents64
    getcwd chdir fchdir ftruncate fsync fdatasync umask sendfile copy_file_range poll ppoll select pselect6
    epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait eventfd2
    sendto recvfrom sendmsg recvmsg shutdown getsockname getpeername getsockopt
    mprotect munmap mremap madvise brk msync
    futex set_robust_list get_robust_list rseq membarrier sched_yield sched_getaffinity sched_getparam
    sched_getscheduler set_tid_address arch_prctl getrandom nanosleep clock_nanosleep clock_gettime clock_getres
    gettimeofday time times getitimer setitimer alarm restart_syscall
    rt_sigaction rt_sigprocmask rt_sigreturn rt_sigsuspend rt_sigpending rt_sigtimedwait sigaltstack pause
    getpid getppid gettid getuid geteuid getgid getegid getresuid getresgid getgroups getpgrp getpgid getsid
    getrlimit setrlimit getrusage sysinfo uname wait4 waitid exit exit_group
""".split()
"""Calls without conditions."""
ALONE = """
    fork vfork execve setsid setpgid
    mkdir mkdirat rmdir unlink unlinkat rename renameat renameat2 link linkat symlink symlinkat
    chmod fchmod fchmodat truncate utimensat
""".split()
"""Calls allowed as well where a session has processes and files of its own."""
REFUSED = """
    socket connect bind listen accept accept4 ptrace mount umount2 unshare setns chroot pivot_root process_vm_readv
    process_vm_writev keyctl add_key bpf perf_event_open io_uring_setup userfaultfd memfd_create shmget capset flock
    kill tgkill tkill
""".split()
"""Calls answered "not permitted", as are those of :data:`ALONE` where they are not allowed.

All others are answered "not implemented", after which libraries try older ones.
"""
LEAVING = """
    ptrace mount umount2 unshare setns chroot pivot_root process_vm_readv process_vm_writev keyctl add_key bpf
    perf_event_open io_uring_setup userfaultfd open_tree move_mount mount_setattr capset
""".split()
"""Calls answered "not permitted" where all others are allowed."""
UNBOUNDED = "memfd_create memfd_secret msgget semget".split()
"""Calls answered "not implemented" where all others are allowed: no limit counts the memory that they take."""

_LOAD, _EQUAL, _AT_LEAST, _ANY, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_ALLOW, _KILL, _ERRNO, _ASK = 0x7FFF0000, 0x80000000, 0x00050000, 0x7FC00000
_NUMBER, _MACHINE = 0, 4
_NAMESPACES = NEW_NS | NEW_CGROUP | NEW_UTS | NEW_IPC | NEW_USER | NEW_PID | NEW_NET
_THREAD = 0x00010000
_SHARED_MEMORY, _HUGE_PAGES = 0x21, 0x40000
_AF_UNIX, _AF_INET, _AF_INET6, _SOCK_STREAM, _SOCK_KIND = 1, 2, 10, 1, 15
_OTHER_NUMBERS = 0x40000000
"""Calls of x86-64 from here on are those of its 32-bit form once more."""
_TERMINAL, _WINDOW, _READABLE, _NONBLOCKING, _NOT_INHERITED, _INHERITED = 0x5401, 0x5413, 0x541B, 0x5421, 0x5451, 0x5450
_SET_NAME, _GET_NAME = 15, 16
_FILE_CONTROL = (0, 1, 2, 3, 4, 1030, 1032)
"""Commands of ``fcntl``: duplicates and flags; no locks, which have no limit, and no signals to owners of files."""


def _word(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("=HBBI", code, then, otherwise, value & 0xFFFFFFFF)


def _argument(index: int, high: bool = False) -> bytes:
    return _word(_LOAD, 16 + 8 * index + (4 if high else 0))


def _end(verdict: int) -> bytes:
    return _word(_RETURN, verdict)


def _refusal(number: int = errno.EPERM) -> bytes:
    return _end(_ERRNO | number)


def _one_of(index: int, values: tuple[int, ...]) -> bytes:
    """Allows the call if the argument's lower half is one of ``values``."""
    steps = [_word(_EQUAL, value, 0, 1) + _end(_ALLOW) for value in values]
    return _argument(index) + b"".join(steps) + _refusal()


def _mapping(verdict: bytes) -> bytes:
    """Gives shared memory without a file that verdict; pages that no process's figures show are refused."""
    checks = _word(_ANY, _HUGE_PAGES, 0, 1) + _refusal(errno.ENOMEM) + _word(_AND, _SHARED_MEMORY)
    return _argument(3) + checks + _word(_EQUAL, _SHARED_MEMORY, 0, 1) + verdict + _end(_ALLOW)


def _conditions(own: int | None, guarded: bool) -> Iterator[tuple[str, bytes]]:
    yield "mmap", _mapping(_end(_ASK) if guarded else _refusal(errno.ENOMEM))
    if own is None:
        yield "clone", _argument(0) + _word(_ANY, _NAMESPACES, 0, 1) + _refusal() + _end(_ALLOW)
        for name, signal_at in (("kill", 1), ("tkill", 1), ("tgkill", 2)):  # what is stopped between calls stays so
            yield name, _argument(signal_at) + _word(_EQUAL, signal.SIGCONT, 0, 1) + _refusal() + _end(_ALLOW)
    else:
        threads_only = _word(_ANY, _THREAD, 0, 1) + _end(_ASK if guarded else _ALLOW) + _refusal()
        yield "clone", _argument(0) + _word(_ANY, _NAMESPACES, 0, 1) + _refusal() + threads_only
        yield "kill", _one_of(0, (own,))
        yield "tgkill", _one_of(0, (own,))
    yield "clone3", _refusal(errno.ENOSYS)
    yield "fcntl", _one_of(1, _FILE_CONTROL)
    yield "prctl", _one_of(0, (_SET_NAME, _GET_NAME))
    yield "prlimit64", _one_of(0, (0,))
    requests = (_TERMINAL, _WINDOW, _READABLE, _NONBLOCKING, _NOT_INHERITED, _INHERITED)
    yield "ioctl", _one_of(1, requests)
    stream = _argument(1) + _word(_AND, _SOCK_KIND) + _word(_EQUAL, _SOCK_STREAM, 0, 1) + _end(_ALLOW) + _refusal()
    yield "socketpair", _argument(0) + _word(_EQUAL, _AF_UNIX, 1, 0) + _refusal() + stream


def _beginning(here: SyscallTable) -> list[bytes]:
    return [_word(_LOAD, _MACHINE), _word(_EQUAL, here.audit, 1, 0), _end(_KILL), _word(_LOAD, _NUMBER)]


def program(own: int | None, guarded: bool = True) -> bytes:
    """Returns the BPF program.

    Args:
        own: Process id of the session where it shares process ids with others: it may then signal only itself, and
            start no process. ``None`` where it has process ids of its own.
        guarded: Calls for shared memory, and with ``own`` for threads, wait for an answer. Without a guard to give it,
            there is no shared memory.

    Raises:
        OSError: The architecture is not known.
    """
    here = machine()
    parts = _beginning(here)
    decided_names: set[str] = set()
    for name, body in _conditions(own, guarded):
        if name in here.numbers:
            parts += [_word(_EQUAL, here.numbers[name], 0, len(body) // 8), body]
        decided_names.add(name)
    allowed_names = ALLOWED + (ALONE if own is None else [])
    for names, verdict in ((allowed_names, _end(_ALLOW)), (REFUSED + ALONE, _refusal())):
        for name in names:
            if name in here.numbers and name not in decided_names:
                parts += [_word(_EQUAL, here.numbers[name], 0, 1), verdict]
                decided_names.add(name)
    return b"".join([*parts, _refusal(errno.ENOSYS)])


def permissive() -> bytes:
    """Returns the BPF program for any program in a sandbox: all calls but those that might lead out of it.

    Namespaces and mounts are not made, other processes not traced, and sockets are those of files and of the
    Internet: others (of virtual machines) know no namespaces. Calls for shared memory wait for an answer.

    Raises:
        OSError: The architecture is not known.
    """
    here = machine()
    parts = [*_beginning(here), _word(_AT_LEAST, _OTHER_NUMBERS, 0, 1), _refusal(errno.ENOSYS)]
    bodies = {
        "clone": _argument(0) + _word(_ANY, _NAMESPACES, 0, 1) + _refusal() + _end(_ALLOW),
        "clone3": _refusal(errno.ENOSYS),
        "socket": _one_of(0, (_AF_UNIX, _AF_INET, _AF_INET6)),
        "mmap": _mapping(_end(_ASK)),
        "shmget": _end(_ASK),
        **dict.fromkeys(LEAVING, _refusal()),
        **dict.fromkeys(UNBOUNDED, _refusal(errno.ENOSYS)),
    }
    for name, body in bodies.items():
        parts += [_word(_EQUAL, here.numbers[name], 0, len(body) // 8), body]
    return b"".join([*parts, _end(_ALLOW)])
