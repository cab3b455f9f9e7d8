"""Numbers of system calls on x86-64 and on 64-bit ARM, from the kernel's headers; only those that are named here."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass

_X86_64 = """
    read=0 write=1 readv=19 writev=20 pread64=17 pwrite64=18 preadv=295 pwritev=296 lseek=8 open=2 openat=257
    creat=85 close=3 close_range=436 dup=32 dup2=33 dup3=292 pipe=22 pipe2=293 stat=4 fstat=5 lstat=6 newfstatat=262
    statx=332 access=21 faccessat=269 faccessat2=439 readlink=89 readlinkat=267 getdents=78 getdents64=217 getcwd=79
    chdir=80 fchdir=81 mkdir=83 mkdirat=258 rmdir=84 unlink=87 unlinkat=263 rename=82 renameat=264 renameat2=316
    link=86 linkat=265 symlink=88 symlinkat=266 chmod=90 fchmod=91 fchmodat=268 truncate=76 ftruncate=77 fsync=74
    fdatasync=75 utimensat=280 umask=95 fcntl=72 flock=73 sendfile=40 copy_file_range=326 poll=7 ppoll=271 select=23
    pselect6=270 epoll_create=213 epoll_create1=291 epoll_ctl=233 epoll_wait=232 epoll_pwait=281 eventfd2=290
    sendto=44 recvfrom=45 sendmsg=46 recvmsg=47 shutdown=48 getsockname=51 getpeername=52 getsockopt=55 mmap=9
    mprotect=10 munmap=11 mremap=25 madvise=28 brk=12 msync=26 mincore=27 futex=202 set_robust_list=273
    get_robust_list=274 rseq=334 membarrier=324 sched_yield=24 sched_getaffinity=204 sched_getparam=143
    sched_getscheduler=145 set_tid_address=218 arch_prctl=158 getrandom=318 nanosleep=35 clock_nanosleep=230
    clock_gettime=228 clock_getres=229 gettimeofday=96 time=201 times=100 getitimer=36 setitimer=38 alarm=37
    restart_syscall=219 rt_sigaction=13 rt_sigprocmask=14 rt_sigreturn=15 rt_sigsuspend=130 rt_sigpending=127
    rt_sigtimedwait=128 sigaltstack=131 pause=34 getpid=39 getppid=110 gettid=186 getuid=102 geteuid=107 getgid=104
    getegid=108 getresuid=118 getresgid=120 getgroups=115 getpgrp=111 getpgid=121 getsid=124 setsid=112 setpgid=109
    getrlimit=97 setrlimit=160 getrusage=98 sysinfo=99 uname=63 wait4=61 waitid=247 exit=60 exit_group=231 fork=57
    vfork=58 clone=56 clone3=435 execve=59 kill=62 tgkill=234 tkill=200 prctl=157 prlimit64=302 ioctl=16
    socketpair=53 socket=41 connect=42 bind=49 listen=50 accept=43 accept4=288 ptrace=101 mount=165 umount2=166
    unshare=272 setns=308 chroot=161 pivot_root=155 process_vm_readv=310 process_vm_writev=311 keyctl=250
    add_key=248 bpf=321 perf_event_open=298 io_uring_setup=425 userfaultfd=323 memfd_create=319 shmget=29 capset=126
    open_tree=428 move_mount=429 mount_setattr=442 landlock_create_ruleset=444 landlock_add_rule=445
    landlock_restrict_self=446 seccomp=317 memfd_secret=447 msgget=68 semget=64
"""
_AARCH64 = """
    read=63 write=64 readv=65 writev=66 pread64=67 pwrite64=68 preadv=69 pwritev=70 lseek=62 openat=56 close=57
    close_range=436 dup=23 dup3=24 pipe2=59 fstat=80 newfstatat=79 statx=291 faccessat=48 faccessat2=439
    readlinkat=78 getdents64=61 getcwd=17 chdir=49 fchdir=50 mkdirat=34 unlinkat=35 renameat=38 renameat2=276
    linkat=37 symlinkat=36 fchmod=52 fchmodat=53 truncate=45 ftruncate=46 fsync=82 fdatasync=83 utimensat=88
    umask=166 fcntl=25 flock=32 sendfile=71 copy_file_range=285 ppoll=73 pselect6=72 epoll_create1=20 epoll_ctl=21
    epoll_pwait=22 eventfd2=19 sendto=206 recvfrom=207 sendmsg=211 recvmsg=212 shutdown=210 getsockname=204
    getpeername=205 getsockopt=209 mmap=222 mprotect=226 munmap=215 mremap=216 madvise=233 brk=214 msync=227
    mincore=232 futex=98 set_robust_list=99 get_robust_list=100 rseq=293 membarrier=283 sched_yield=124
    sched_getaffinity=123 sched_getparam=121 sched_getscheduler=120 set_tid_address=96 getrandom=278 nanosleep=101
    clock_nanosleep=115 clock_gettime=113 clock_getres=114 gettimeofday=169 times=153 getitimer=102 setitimer=103
    restart_syscall=128 rt_sigaction=134 rt_sigprocmask=135 rt_sigreturn=139 rt_sigsuspend=133 rt_sigpending=136
    rt_sigtimedwait=137 sigaltstack=132 getpid=172 getppid=173 gettid=178 getuid=174 geteuid=175 getgid=176
    getegid=177 getresuid=148 getresgid=150 getgroups=158 getpgid=155 getsid=156 setsid=157 setpgid=154
    getrlimit=163 setrlimit=164 getrusage=165 sysinfo=179 uname=160 wait4=260 waitid=95 exit=93 exit_group=94
    clone=220 clone3=435 execve=221 kill=129 tgkill=131 tkill=130 prctl=167 prlimit64=261 ioctl=29 socketpair=199
    socket=198 connect=203 bind=200 listen=201 accept=202 accept4=242 ptrace=117 mount=40 umount2=39 unshare=97
    setns=268 chroot=51 pivot_root=41 process_vm_readv=270 process_vm_writev=271 keyctl=219 add_key=217 bpf=280
    perf_event_open=241 io_uring_setup=425 userfaultfd=282 memfd_create=279 shmget=194 capset=91 open_tree=428
    move_mount=429 mount_setattr=442 landlock_create_ruleset=444 landlock_add_rule=445 landlock_restrict_self=446
    seccomp=277 memfd_secret=447 msgget=186 semget=190
"""


@dataclass(frozen=True)
class SyscallTable:
    """One processor architecture."""

    audit: int
    """Its number in the data that a filter of system calls sees."""
    numbers: Mapping[str, int]
    """Numbers of its system calls; it may lack old ones."""


def _table(text: str) -> Mapping[str, int]:
    return {name: int(number) for name, number in (entry.split("=") for entry in text.split())}


MACHINES: Mapping[str, SyscallTable] = {
    "x86_64": SyscallTable(0xC000003E, _table(_X86_64)),
    "aarch64": SyscallTable(0xC00000B7, _table(_AARCH64)),
}
"""Architectures by the name that ``uname -m`` prints."""


def machine() -> SyscallTable:
    """Returns this machine's architecture.

    Raises:
        OSError: Its numbers are not known.
    """
    name = platform.machine()
    if name not in MACHINES:
        raise OSError(f"the system calls of {name} are not known here; known: {', '.join(MACHINES)}")
    return MACHINES[name]
