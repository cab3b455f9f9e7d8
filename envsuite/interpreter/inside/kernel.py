"""System calls of Linux that Python does not have."""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Iterable

from envsuite.interpreter.inside.syscalls import machine

NEW_NS, NEW_CGROUP, NEW_UTS, NEW_IPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
NEW_USER, NEW_PID, NEW_NET = 0x10000000, 0x20000000, 0x40000000
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP = 1, 4, 24
_PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 38, 47, 4
_PR_SET_CHILD_SUBREAPER, _ADDR_NO_RANDOMIZE = 36, 0x0040000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 32, 16384, 1 << 18
_MNT_DETACH = 2
_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_OPEN_TREE_CLONE, _MOVE_MOUNT_F_EMPTY_PATH = 1, 4
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV = 1, 2, 4
_LANDLOCK_ABI = 1
_SECCOMP_FILTER, _SECCOMP_NEW_LISTENER = 1, 8
_NOTIF_RECV, _NOTIF_SEND, _NOTIF_CONTINUE = 0xC0502100, 0xC0182101, 1
_LAST_CAPABILITY = 63

_libc = ctypes.CDLL(None, use_errno=True)


def _check_result(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _call(name: str, *arguments: int | bytes | ctypes.Array[ctypes.c_char] | None) -> int:
    numbers = machine().numbers
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    return _check_result(_libc.syscall(ctypes.c_long(numbers[name]), *words), name)


def _prctl(option: int, *arguments: int) -> int:
    words = [ctypes.c_ulong(word) for word in (*arguments, 0, 0, 0, 0)[:4]]
    return _check_result(_libc.prctl(ctypes.c_int(option), *words), f"prctl({option})")


def unshare(flags: int) -> None:
    """Moves this process (its children, for process ids) to new namespaces.

    Raises:
        OSError: The kernel or the administrator does not allow it.
    """
    _check_result(_libc.unshare(ctypes.c_int(flags)), "unshare")


def map_own_ids(uid: int, gid: int, inside: int) -> None:
    """Maps one user and one group of the user namespace just made; no other exists in it.

    Args:
        uid: The user outside, that of this process before.
        gid: The group outside.
        inside: Number of both inside.

    Raises:
        OSError: The kernel does not allow it.
    """
    for file, line in (("setgroups", "deny"), ("uid_map", f"{inside} {uid} 1"), ("gid_map", f"{inside} {gid} 1")):
        try:
            with open(f"/proc/self/{file}", "w", encoding="ascii") as stream:
                stream.write(line)
        except OSError as error:
            raise OSError(error.errno, f"{file}: {error.strerror}") from error


def mount(kind: str | None, target: str, flags: int = 0, options: str = "") -> None:
    """Mounts a new file system of a ``kind``, or changes the flags of ``target``.

    Raises:
        OSError: It is not allowed.
    """
    name = None if kind is None else kind.encode()
    result = _libc.mount(name, target.encode(), name, ctypes.c_ulong(flags), options.encode() or None)
    _check_result(result, f"mount {kind or ''} {target}")


def unmount(target: str) -> None:
    """Removes a mount; files that are open stay usable."""
    _check_result(_libc.umount2(target.encode(), ctypes.c_int(_MNT_DETACH)), f"umount {target}")


def set_host_name(name: bytes) -> None:
    """Names the machine for all processes of the namespace."""
    _check_result(_libc.sethostname(name, ctypes.c_size_t(len(name))), "sethostname")


def open_tree(path: str) -> int:
    """Returns a descriptor of a copy of the mounts at ``path``, for :func:`place_tree`."""
    flags = _OPEN_TREE_CLONE | _AT_RECURSIVE | os.O_CLOEXEC
    return _call("open_tree", _AT_FDCWD, os.fsencode(path) + b"\0", flags)


def place_tree(tree: int, target: str, devices: bool = False, writable: bool = False) -> None:
    """Puts a tree at ``target``, read-only and without set-user-id programs; closes the descriptor.

    Args:
        tree: Descriptor from :func:`open_tree`.
        target: An existing file or folder.
        devices: Device files work, and data may be written to them.
        writable: Files may be changed.
    """
    attributes = (0 if writable else _ATTR_RDONLY) | _ATTR_NOSUID | (0 if devices else _ATTR_NODEV)
    settings = struct.pack("=QQQQ", attributes, 0, 0, 0)
    _call("mount_setattr", tree, b"\0", _AT_EMPTY_PATH | _AT_RECURSIVE, settings, len(settings))
    _call("move_mount", tree, b"\0", _AT_FDCWD, target.encode() + b"\0", _MOVE_MOUNT_F_EMPTY_PATH)
    os.close(tree)


def change_root(folder: str) -> None:
    """Makes ``folder``, a mount, the root of this process, and removes everything else from its sight."""
    os.chdir(folder)
    _call("pivot_root", b".\0", b".\0")
    unmount(".")
    os.chdir("/")


def drop_capabilities() -> None:
    """Gives up all rights beyond those of a user, for this process and whatever it becomes."""
    for capability in range(_LAST_CAPABILITY + 1):
        try:
            _prctl(_PR_CAPBSET_DROP, capability)
        except OSError:  # this kernel has no more of them, or they are not this process's to drop
            break
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    header = struct.pack("=Ii", 0x20080522, 0)
    _call("capset", header, bytes(24))


def no_new_rights() -> None:
    """Programs started from here get no rights from their files."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def die_with_parent(signal: int) -> None:
    """This process gets ``signal`` when the thread that forked it ends."""
    _prctl(_PR_SET_PDEATHSIG, signal)


def hide_from_equals(hidden: bool = True) -> None:
    """Other processes of the same user may neither trace this one nor read its environment.

    Args:
        hidden: False ends it, as a process needs that changed its user and maps it.
    """
    _prctl(_PR_SET_DUMPABLE, 0 if hidden else 1)


def adopt_orphans() -> None:
    """Descendants whose parent has ended become children of this process, also those with a session of their own."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def raise_loopback() -> None:
    """Lets processes of this network namespace, which must be new, reach each other at 127.0.0.1.

    Raises:
        OSError: It is not allowed.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _IFF_UP))


def fix_addresses() -> None:
    """The next program of this process has its memory at the same addresses in each run."""
    _libc.personality(ctypes.c_ulong(_ADDR_NO_RANDOMIZE))


def filter_calls(program: bytes) -> int:
    """Lets the kernel check each system call of this process with a BPF ``program``, for good.

    Returns a descriptor, which this process must give away: who has it answers the calls that wait for an answer.

    Raises:
        OSError: The kernel has no such filters.
    """
    code = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(code))
    memory = ctypes.create_string_buffer(header, len(header))
    return _call("seccomp", _SECCOMP_FILTER, _SECCOMP_NEW_LISTENER, memory)


def waiting_call(listener: int) -> tuple[int, int, tuple[int, ...]]:
    """Returns name, system call and arguments of a call that waits for an answer, from :func:`filter_calls`.

    Raises:
        OSError: It waits no longer.
    """
    notice = bytearray(80)
    fcntl.ioctl(listener, _NOTIF_RECV, notice)
    name, _, _, number, _, _, *arguments = struct.unpack("=QIIiIQ6Q", notice)
    return name, number, tuple(arguments)


def answer_call(listener: int, name: int, refusal: int) -> None:
    """Lets a call go on, or answers it with an error number.

    Raises:
        OSError: It waits no longer.
    """
    fcntl.ioctl(listener, _NOTIF_SEND, struct.pack("=QqiI", name, 0, -refusal, 0 if refusal else _NOTIF_CONTINUE))


def landlock_version() -> int:
    """Returns the version of Landlock that the kernel has; 0 for none."""
    try:
        return _call("landlock_create_ruleset", None, 0, _LANDLOCK_ABI)
    except OSError:
        return 0


def landlock(readable: Iterable[str], writable: Iterable[str]) -> None:
    """Takes from this process all access to files but to these; needs :func:`no_new_rights`.

    Metadata of other files stay visible. No network address can be bound or connected to where the kernel can forbid
    it (version 4), no process outside be signalled (version 6).

    Args:
        readable: Files and folders to read.
        writable: Files, such as ``/dev/null``, to read and write.

    Raises:
        OSError: The kernel has no Landlock.
    """
    version = landlock_version()
    files = (1 << 13) - 1 | (1 << 13 if version >= 2 else 0) | (1 << 14 if version >= 3 else 0)
    files |= 1 << 15 if version >= 5 else 0
    fields = (files, 3 if version >= 4 else 0, 3 if version >= 6 else 0)
    used = 3 if version >= 6 else 2 if version >= 4 else 1
    attributes = struct.pack(f"={used}Q", *fields[:used])
    rules = _call("landlock_create_ruleset", attributes, len(attributes), 0)
    read_file, read_folder, write_file = 1 << 2, 1 << 3, 1 << 1
    for paths, folder_rights, file_rights in (
        (readable, read_file | read_folder, read_file),
        (writable, 0, read_file | write_file),
    ):
        for path in paths:
            target = os.open(path, os.O_PATH | os.O_CLOEXEC)
            rights = folder_rights if os.path.isdir(path) else file_rights
            _call("landlock_add_rule", rules, 1, struct.pack("=Qi", rights, target), 0)
            os.close(target)
    _call("landlock_restrict_self", rules, 0)
    os.close(rules)
