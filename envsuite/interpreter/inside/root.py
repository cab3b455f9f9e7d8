"""The files that a session sees: Python, its standard library, a few packages, shared libraries, nothing else."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from envsuite.interpreter.inside import kernel

SYSTEM_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
LOADER_CACHE = "/etc/ld.so.cache"
DEVICES = ("/dev/null", "/dev/random", "/dev/urandom")
ZEROS = "/dev/zero"
"""A file of zeros: maps of the device that are shared would be memory that nothing counts."""
PACKAGES = "/packages"
"""Folder of the packages in the sandbox."""
GUARD = "/guard"
"""Folder of this code in the sandbox."""
WORK = "/tmp"
"""Folder of a session in the sandbox."""
_FOREIGN = ("site-packages", "dist-packages")
"""Folders in a library that hold what was installed, envsuite itself perhaps: hidden."""


@dataclass(frozen=True)
class SandboxFiles:
    """Where the host has what a session may read."""

    python: str
    """The interpreter's program, with no symbolic link in its path."""
    prefix: str
    """``sys.base_prefix``."""
    library: str
    """Folder of the standard library."""
    packages: Mapping[str, str]
    """Folders and modules of packages, by their names in :data:`PACKAGES`."""
    code: str
    """Folder of this module."""

    def libraries(self) -> Iterator[str]:
        """Yields the folders with shared libraries and the standard library; later ones may lie in earlier ones."""
        own = os.path.join(self.prefix, "lib")
        system = [path for path in SYSTEM_LIBRARIES if os.path.isdir(path)]
        yield from (path for path in system if not os.path.islink(path))
        if not any(own == path or own.startswith(f"{path}/") for path in system):
            yield own
        if not self.library.startswith((f"{own}/", *(f"{path}/" for path in system))):
            yield self.library

    def hidden(self) -> Iterator[str]:
        """Yields the folders below :meth:`libraries` that a session must not see."""
        folders = {self.library, *(f"{os.path.realpath(path)}/python3" for path in SYSTEM_LIBRARIES)}
        for folder in sorted(folders):
            for name in _FOREIGN:
                if os.path.isdir(path := os.path.join(folder, name)):
                    yield path


def build(files: SandboxFiles) -> None:
    """Makes a root of ``files`` and enters it.

    The mount and process namespaces must be new, and the caller the first process in the latter.

    Raises:
        OSError: The kernel does not allow a step.
    """
    targets = {path: path for path in (*files.libraries(), files.python)}
    targets |= {path: f"{PACKAGES}/{name}" for name, path in files.packages.items()}
    targets |= {files.code: f"{GUARD}/envsuite/interpreter/inside"}
    if os.path.exists(LOADER_CACHE):
        targets[LOADER_CACHE] = LOADER_CACHE
    links = {path: os.readlink(path) for path in SYSTEM_LIBRARIES if os.path.islink(path)}
    make_root({target: source for source, target in targets.items()}, links, list(files.hidden()))


def make_root(
    readable_paths: Mapping[str, str],
    links: Mapping[str, str],
    hidden: Iterable[str],
    writable: Mapping[str, str] | None = None,
    scratch: str | None = None,
) -> None:
    """Makes a root, and enters it. The mount namespace must be new.

    Args:
        readable_paths: Paths in the root, with those of the machine that are there, read-only.
        links: Paths in the root, with what they lead to.
        hidden: Folders in the root that are to be empty.
        writable: As ``readable_paths``, for folders to write to; they cover what is placed below them.
        scratch: Options of a file system in memory at :data:`WORK`; ``None`` for none.

    Raises:
        OSError: The kernel does not allow a step.
    """
    kernel.mount(None, "/", kernel.MS_REC | kernel.MS_PRIVATE)
    trees = {target: kernel.open_tree(source) for target, source in readable_paths.items()}
    writable_trees = {target: kernel.open_tree(source) for target, source in (writable or {}).items()}
    devices = {path: kernel.open_tree(path) for path in DEVICES}
    folders = {target: os.path.isdir(source) for target, source in readable_paths.items()}

    root = WORK
    os.umask(0o022)  # another user than this one looks into the folders
    kernel.mount("tmpfs", root, kernel.MS_NOSUID | kernel.MS_NODEV, "mode=755,size=1m")
    os.makedirs(root + WORK)
    if scratch is not None:
        kernel.mount("tmpfs", root + WORK, kernel.MS_NOSUID | kernel.MS_NODEV, scratch)
    for target, tree in sorted(trees.items()):
        _make(root + target, folders[target])
        kernel.place_tree(tree, root + target)
    for path in hidden:
        if os.path.isdir(root + path):
            flags = kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV
            kernel.mount("tmpfs", root + path, flags, "mode=755,size=4k")
    for path, tree in devices.items():
        _make(root + path, False)
        kernel.place_tree(tree, root + path, devices=True)
    _make(root + ZEROS, False)
    os.truncate(root + ZEROS, 2**40)
    for path, link in {**links, "/dev/shm": WORK}.items():  # the latter for semaphores of multiprocessing
        os.makedirs(os.path.dirname(root + path), exist_ok=True)
        os.symlink(link, root + path)
    for target, tree in writable_trees.items():
        _make(root + target, True)
        kernel.place_tree(tree, root + target, writable=True)
    os.makedirs(f"{root}/proc")
    kernel.mount("proc", f"{root}/proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
    kernel.change_root(root)
    flags = kernel.MS_REMOUNT | kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("tmpfs", "/", flags, "mode=755,size=1m")


def readable(files: SandboxFiles) -> list[str]:
    """Returns the paths that a session may read where files are protected by rules and not by a root of their own."""
    own = os.path.join(files.prefix, "lib")
    library = [os.path.join(files.library, name) for name in os.listdir(files.library) if name not in _FOREIGN]
    shared_libraries = [
        os.path.join(folder, name)
        for folder in {*SYSTEM_LIBRARIES, own}
        if os.path.isdir(folder)
        for name in os.listdir(folder)
        if ".so" in name or name.endswith("-linux-gnu")
    ]
    paths = [*library, *shared_libraries, *files.packages.values(), LOADER_CACHE, "/dev/urandom", "/dev/random"]
    return sorted({path for path in map(os.path.realpath, paths) if os.path.exists(path)})


def _make(path: str, folder: bool) -> None:
    """Makes an empty file or folder to mount on, unless a mount already has it."""
    if os.path.lexists(path):
        return
    os.makedirs(path if folder else os.path.dirname(path), mode=0o755, exist_ok=True)
    if not folder:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
