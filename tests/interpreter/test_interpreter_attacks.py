"""Code that a model might write to get out, to get more than its share, or to break what runs it."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from hoarding import HELD, WAYS
from sandboxes import opened, processes
from waiting import until

from envsuite.interpreter import InterpreterSession, Limits

DEAF = """
import signal
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
"""
"""Ignores every signal that can be ignored."""
REFUSED = ("PermissionError", "FileNotFoundError", "BlockingIOError", "OSError", "ProcessLookupError")


def refused(session: InterpreterSession, code: str) -> str:
    """Runs code that must end with an error of the operating system; returns the error's last line."""
    result = session.run(code)
    assert result.status == "error", result
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith(REFUSED), result
    return last


def test_a_fork_bomb_ends_with_its_session_and_never_has_more_processes_than_the_limit(quick, sandbox):
    before = len(processes())
    result = quick.run("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass")
    assert result.status == "timeout"
    assert "lost" in result.stderr
    until(lambda: len(processes()) <= before, 10.0)


def test_the_number_of_processes_and_threads_is_limited(session, sandbox):
    code = """
import os, time
try:
    for made in range(100):
        if os.fork() == 0: time.sleep(60)
except OSError as error:
    print(made, type(error).__name__)
"""
    # The process that forked the session counts until it has been collected.
    most = {"namespaces": ("7 BlockingIOError\n", "6 BlockingIOError\n"), "landlock": ("0 PermissionError\n",)}
    assert session.run(code).stdout in most[sandbox]


@pytest.mark.seconds
def test_memory_is_limited_whether_it_is_taken_at_once_or_in_pieces(box, sandbox):
    pieces = ("x = []\nwhile True: x.append(bytearray(2**20))", "x = 1\nwhile True: x = [x] * 2")
    with opened(sandbox, Limits(seconds=60.0, memory=128 * 2**20)).open() as session:
        for code in ("x = bytearray(2**30)", *pieces):
            result = session.run(code)
            assert result.status == "memory"
            assert "128 MiB" in result.stderr and "lost" in result.stderr
        assert session.run("6 * 7").stdout == "42\n"


def test_memory_is_limited_for_all_processes_of_a_session_together():
    box = opened("namespaces", Limits(seconds=20.0, memory=64 * 2**20))
    code = """
import os, time
for _ in range(6):
    if os.fork() == 0: x = bytearray(b'x') * (40 * 2**20); break
time.sleep(60)
"""
    with box.open() as session:
        result = session.run(code)
        assert result.status == "memory"
        assert session.run("1").stdout == "1\n"


@pytest.mark.parametrize("way", WAYS)
def test_memory_that_no_process_shows_is_limited(session, way):
    held = 0
    for _ in range(2):  # what was granted stays granted
        result = session.run(HELD.replace("TAKE", WAYS[way]))
        held = 0 if result.status == "memory" else held + int(result.stdout)
        assert held <= 128, result
        assert result.status == "memory" or session.run("import time; time.sleep(0.1)").status == "ok"


def case(root: Path, name: str) -> str:
    """A script of the folder of cases, or a skipped test where that is absent."""
    if not (path := root.parent / "shared/cases/security" / name).is_file():
        pytest.skip(f"{path} is not here")
    return path.read_text("utf-8")


def test_shared_memory_of_several_processes_is_within_the_limit(session, root):
    result = session.run(case(root, "shm_dontneed.py"))
    assert result.status != "ok" or "held" not in result.stdout, result


def test_memory_is_looked_at_after_short_calls_too():
    code = "import os, time\nfor _ in range(6):\n    if os.fork() == 0:\n        x = []\n" + (
        "        while True: time.sleep(0.001); x.append(b'x' * 2**20)\n"
    )
    with opened("namespaces", Limits(seconds=20.0, memory=64 * 2**20)).open() as session:
        results = [session.run(code)] + [session.run("time.sleep(0.004)") for _ in range(200)]
        assert "memory" in [result.status for result in results]


def test_memory_that_was_caught_by_the_code_costs_nothing(session):
    result = session.run("x = 5\ntry:\n    y = bytearray(2**30)\nexcept MemoryError:\n    print('caught')\nx")
    assert (result.stdout, result.status) == ("caught\n5\n", "ok")


def test_the_disk_is_limited_over_all_files_for_one_and_for_many_empty_ones(session, sandbox):
    last = refused(session, "for n in range(1000):\n    with open(f'f{n}', 'wb') as f: f.write(b'x' * 2**18)")
    assert ("No space left" in last) == (sandbox == "namespaces")
    refused(session, "with open('f', 'wb') as f:\n    while True: f.write(b'x' * 2**16)")
    refused(session, "import os\nfor n in range(10**6): os.mkdir(f'd{n}')")


@pytest.mark.parametrize(
    "code",
    [
        "socket.socket(socket.AF_INET)",
        "socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)",
        "socket.socket(socket.AF_UNIX)",
        "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
        "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b'x', '\\0abstract')",
        "socket.create_connection(('127.0.0.1', 22))",
        "import urllib.request as u; u.urlopen('http://127.0.0.1')",
    ],
)
def test_there_is_no_network(session, code):
    result = session.run(f"import socket\n{code}")
    assert result.status == "error"
    assert "Operation not permitted" in result.stderr


def test_an_event_loop_runs_nevertheless(session):
    result = session.run(
        "import asyncio\nasync def f():\n    await asyncio.sleep(0.01)\n    return 3\nasyncio.run(f())"
    )
    assert (result.stdout, result.status) == ("3\n", "ok")


def test_threads_are_limited(session):
    code = """
import threading, time
threading.stack_size(2**16)
try:
    for made in range(200): threading.Thread(target=time.sleep, args=(1,)).start()
except RuntimeError: pass
print(made)
"""
    assert 5 <= int(session.run(code).stdout) <= 8


def test_a_sandbox_works_whatever_the_umask(sandbox, root):
    program = (
        "import os, sys\nos.umask(0o077)\nfrom envsuite.interpreter import open_interpreter\n"
        "print(open_interpreter(sys.argv[1]).open().run('1'))\n"
        "from trainers.gateway.command import AgentConfig, CommandAgent\n"
        "print(CommandAgent(AgentConfig(run=[sys.executable], sandbox=sys.argv[1] == 'namespaces')))"
    )
    run = subprocess.run([sys.executable, "-c", program, sandbox], capture_output=True, text=True, cwd=root)
    assert "status='ok'" in run.stdout and run.returncode == 0, run


def test_a_session_has_no_rights_of_root(box):
    before = processes()
    with box.open() as session:
        session.run("x = 1")
        until(lambda: _stopped(processes() - before), 20.0)
        for process in psutil.process_iter(["status"]):
            if process.pid in processes() - before and process.info["status"] == psutil.STATUS_STOPPED:
                told = Path(f"/proc/{process.pid}/status").read_text().splitlines()
                rights = {line.split()[1] for line in told if line.startswith(("CapPrm", "CapEff", "CapAmb"))}
                assert rights == {"0" * 16}


def test_no_files_are_locked_and_no_signals_sent_by_control_of_files(session):
    for call in ("F_SETOWN, 1", "F_SETSIG, 9", "F_SETLK, bytes(32)", "F_SETPIPE_SZ, 2**20"):
        refused(session, f"from fcntl import *\nF_SETSIG, F_SETPIPE_SZ = 10, 1031\nfcntl(1, {call})")
    refused(session, "import fcntl, os\nfcntl.flock(os.open(os.__file__, os.O_RDONLY), fcntl.LOCK_EX)")


def test_other_processes_cannot_be_seen(session):
    for place in (f"/proc/{os.getpid()}/environ", "/proc/1/environ", "/proc/self/environ", "/proc/self/mem"):
        refused(session, f"open({place!r}, 'rb').read()")
    result = session.run("import os\nsorted(os.environ)")
    assert "PATH" not in result.stdout and "ENVSUITE" not in result.stdout


def test_no_process_but_its_own_can_be_signalled(session, sandbox):
    code = f"""
import os, signal
told = []
for pid in (1, os.getppid(), {os.getpid()}, {os.getppid()}, -1):
    for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM):
        try:
            os.kill(pid, number) if pid != -1 or {sandbox == "landlock"} else None
        except OSError as error:
            told.append(type(error).__name__)
print('still here')
"""
    assert session.run(code).stdout == "still here\n"
    assert session.run("1").stdout == "1\n"  # the guard too


def test_a_session_that_kills_itself_or_everything_says_so(session):
    result = session.run("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    assert result.status == "died"
    assert "SIGKILL" in result.stderr and "lost" in result.stderr
    assert session.run("import os\nos._exit(3)").stderr.startswith("died: the session's process exited with code 3.")
    assert "SIGABRT" in session.run("import os\nos.abort()").stderr
    assert "SIGSEGV" in session.run("import ctypes\nctypes.string_at(0)").stderr


@pytest.mark.seconds
def test_a_gigabyte_of_output_is_cut_and_fills_no_memory_here(box, sandbox):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with opened(sandbox, Limits(seconds=60.0, output=2000)).open() as session:
        code = "import sys\nprint('begin')\nfor _ in range(1024): sys.stdout.write('x' * 2**20)\nprint('end')"
        result = session.run(code)
    assert result.status == "ok"
    assert result.stdout.startswith("begin\nxxx") and result.stdout.endswith("xxxend\n")
    assert "characters left out" in result.stdout
    assert len(result.stdout) == 2000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB


@pytest.mark.seconds
def test_sleep_ends_with_the_clock(box, sandbox):
    with opened(sandbox, Limits(seconds=2.0, memory=128 * 2**20)).open() as session:
        began = time.monotonic()
        result = session.run("import time\nprint('before')\ntime.sleep(600)")
        assert (result.stdout, result.status) == ("before\n", "timeout")
        assert "stopped after 2 s" in result.stderr
        assert time.monotonic() - began < 30
        assert session.run("6 * 7").stdout == "42\n"


@pytest.mark.seconds
@pytest.mark.parametrize(
    "code",
    [
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        f"{DEAF}while True: pass",
        "10 ** 10 ** 10",
        "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
        "import time\nclass A:\n    def __del__(self): time.sleep(600)\nA()\nNone",
        "import re\nre.match('(a*)*b', 'a' * 100)",
        "import threading\nthreading.Thread(target=threading.Event().wait).start()\nthreading.Event().wait()",
        "class A:\n    def __repr__(self):\n        while True: pass\nA()",
        f"{DEAF}class A(Exception):\n    def __str__(self):\n        while True: pass\nraise A",
    ],
)
def test_code_that_cannot_be_interrupted_is_stopped_by_the_clock(quick, code):
    assert quick.run(code).status in ("timeout", "memory")


def test_it_writes_nowhere_but_in_its_folder(session, sandbox, tmp_path):
    tmp_path.chmod(0o777)
    for folder in (tmp_path, "/", "/dev", "/etc", "/root", "/proc", "/var/tmp", "/packages", "/guard"):
        refused(session, f"open('{folder}/x', 'w')")
    victim = tmp_path / "victim"
    victim.write_text("as it was")
    victim.chmod(0o666)
    for call in (
        *("mkdir('/d')", "symlink('/etc', '/l')", "unlink('/dev/null')", "chroot('/')"),
        *(f"chmod('{path}', 0o600)" for path in (tmp_path, victim)),
        *(f"{call}('{victim}')" for call in ("unlink", "utime", "remove")),
        *(f"truncate('{victim}', 0)", f"rename('{victim}', '{victim}2')", f"link('{victim}', '{victim}2')"),
        *(f"chown('{victim}', 0, 0)", f"setxattr('{victim}', 'user.x', b'')"),
    ):
        refused(session, f"import os\nos.{call}")
    assert (victim.read_text(), victim.stat().st_mode & 0o777) == ("as it was", 0o666)
    victim.unlink()
    assert not list(tmp_path.iterdir())
    if sandbox == "namespaces":
        assert session.run("open('mine', 'w').write('kept')\nopen('mine').read()").stdout == "'kept'\n"
        session.run("open('/tmp/a-name-that-nothing-else-has', 'w').write('x')")
        assert not Path("/tmp/a-name-that-nothing-else-has").exists()
    else:
        refused(session, "open('mine', 'w')")
        refused(session, "open('/tmp/a-name-that-nothing-else-has', 'w')")


def test_a_session_that_nobody_holds_ends(box):
    before = processes()
    session = box.open()
    session.run("x = 1")
    assert processes() - before
    del session
    until(lambda: processes() <= before, 10.0)


def test_a_program_that_is_killed_during_a_call_leaves_nothing(sandbox):
    program = (
        "import os, sys, threading\nfrom envsuite.interpreter import open_interpreter\n"
        "print(os.getpid(), flush=True)\nthreading.Timer(0.5, os.kill, (os.getpid(), 9)).start()\n"
        f"open_interpreter(sys.argv[1]).open().run({DEAF + 'while True: pass'!r})"
    )
    run = subprocess.run([sys.executable, "-c", program, sandbox], capture_output=True, text=True, cwd="/")
    assert run.returncode == -9
    until(lambda: not processes(int(run.stdout)), 10.0)


def test_a_daemon_does_not_survive_its_session(box, sandbox):
    code = f"""
import os, time
if os.fork() == 0:
    os.setsid()
    exec({DEAF!r})
    if os.fork() == 0:
        while True: time.sleep(1)
    os._exit(0)
print('started')
"""
    before = processes()
    with box.open() as session:
        if sandbox == "landlock":
            refused(session, code)
        else:
            assert session.run(code).stdout == "started\n"
            assert len(processes()) >= len(before) + 3  # guard, session, daemon
    until(lambda: processes() <= before, 10.0)


@pytest.mark.seconds
def test_background_work_stands_still_between_calls(sandbox):
    code = """
import threading, time
count = 0
def work():
    global count
    while True:
        count += 1
        time.sleep(0.001)
threading.Thread(target=work, daemon=True).start()
"""
    before = processes()
    with opened(sandbox).open() as session:
        session.run(code)
        until(lambda: _stopped(processes() - before), 20.0)
        first = int(session.run("count").stdout)
        time.sleep(2.0)
        assert int(session.run("count").stdout) - first < 400  # of 2000, on a machine that is not busy


@pytest.mark.seconds
@pytest.mark.parametrize("delay", ["0", "0.004", "0.012", "0.03"])
def test_no_orphan_goes_on_between_calls(root, delay):
    code, count = case(root, "orphan_cont.py"), "struct.unpack('<Q', shared[:8])[0]"
    with opened("namespaces", Limits(seconds=30.0)).open() as session:
        assert session.run(code.replace("DELAY", delay)).status == "ok"
        first = int(session.run(count).stdout)
        time.sleep(1.0)
        assert int(session.run(count).stdout) - first < 200  # of 1000, on a machine that is not busy


def test_no_session_lets_its_processes_go_on(session, sandbox):
    if sandbox == "namespaces":
        refused(session, "import os, signal\nos.kill(os.getpid(), signal.SIGCONT)")


def _stopped(of: set[int]) -> bool:
    """Whether one of these processes is stopped."""
    return any(
        process.pid in of and process.info["status"] == psutil.STATUS_STOPPED
        for process in psutil.process_iter(["status"])
    )


def test_reaching_os_through_subclasses_gains_nothing(session):
    code = """
wrap = [c for c in ().__class__.__base__.__subclasses__() if c.__name__ == '_wrap_close'][0]
system = wrap.__init__.__globals__['system']
print(system('id; cat /etc/passwd; ls /root'))
"""
    result = session.run(code)
    assert "root" not in result.stdout
    refused(session, "import subprocess\nsubprocess.run(['/bin/sh', '-c', 'id'])")


def test_nothing_of_the_kernel_that_leads_out_can_be_called(session):
    code = """
import ctypes, errno, platform
libc = ctypes.CDLL(None, use_errno=True)
told = []
for name, *arguments in (
    ('ptrace', 16, 1, 0, 0), ('unshare', 0x10000000), ('setns', 0, 0), ('mount', b'tmpfs', b'/tmp', b'tmpfs', 0, None),
    ('umount2', b'/proc', 2), ('chroot', b'/'), ('process_vm_readv', 1, None, 0, None, 0, 0),
    ('process_vm_writev', 1, None, 0, None, 0, 0), ('memfd_create', b'x', 0), ('shmget', 0, 4096, 0o1600),
    ('prctl', 4, 1, 0, 0, 0), ('personality', 0xffffffff), ('syscall', 425, 1, None),
    ('syscall', 321 if platform.machine() == 'x86_64' else 280, 0, None, 0), ('syscall', 435, None, 0),
    ('syscall', 434, 1, 0), ('setuid', 0), ('swapon', b'/', 0), ('init_module', None, 0, None),
):
    ctypes.set_errno(0)
    result = getattr(libc, name)(*arguments)
    told.append((name, result, errno.errorcode.get(ctypes.get_errno())))
print([t for t in told if t[1] != -1 or t[2] not in ('EPERM', 'ENOSYS')])
"""
    assert session.run(code).stdout == "[]\n"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="only x86-64 has system calls of another architecture")
def test_system_calls_of_32_bit_programs_are_no_way_around_the_list(session):
    code = """
import ctypes, mmap
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(bytes.fromhex('b814000000cd80c3'))  # mov eax, 20 (getpid); int 0x80; ret
ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
"""
    result = session.run(code)
    assert result.status == "died" and ("SIGSYS" in result.stderr or "SIGSEGV" in result.stderr), result


def test_limits_cannot_be_raised(session):
    for kind in ("RLIMIT_AS", "RLIMIT_FSIZE", "RLIMIT_NOFILE"):
        code = f"from resource import *\nsetrlimit({kind}, (RLIM_INFINITY, RLIM_INFINITY))"
        assert session.run(code).stderr.strip().splitlines()[-1].startswith(("ValueError", "PermissionError"))


def test_the_machine_s_files_cannot_be_read_through_links_either(session, root, sandbox):
    for path in ("/etc/passwd", "/etc/shadow", "/etc/hostname", root / "README.md", root / "envsuite" / "__init__.py"):
        refused(session, f"open({str(path)!r}).read()")
    for path in ("/etc/passwd", root / "README.md", "../../../../../etc/shadow", "/proc/1/root/etc/passwd"):
        link = f"import os\nos.symlink({str(path)!r}, 'link')\n"
        refused(session, f"{link}try: open('link').read()\nfinally: os.unlink('link')")
    for folder in (root, Path.home(), "/home", "/sys", "/var", "/run"):
        result = session.run(f"import os\nos.listdir({str(folder)!r})")
        assert result.status == "error" or sandbox == "namespaces"
        assert not set(eval(result.stdout or "[]")) & {"README.md", "tests", ".ssh", ".bashrc", ".git"}
    assert "ModuleNotFoundError" in session.run("import envsuite").stderr
    assert "ModuleNotFoundError" in session.run("import gymnasium").stderr


def test_deep_recursion_is_an_error_or_the_end_of_its_session_only(quick):
    result = quick.run("def f(n): return f(n + 1)\nf(0)")
    assert result.status == "error"
    assert "RecursionError" in result.stderr and len(result.stderr) <= 2000
    result = quick.run("import sys\nsys.setrecursionlimit(10**9)\ndef f(n): return f(n + 1)\nf(0)")
    assert result.status in ("memory", "died", "timeout", "error")  # CPython 3.11 makes a SystemError of it
    assert quick.run("sorted([1], key=lambda x: eval('(' * 5000 + ')' * 5000))").status in ("error", "died", "memory")


def test_exit_ends_the_call_and_not_the_session(session):
    session.run("x = 5")
    assert session.run("print('a')\nexit()\nprint('b')").stdout == "a\n"
    assert session.run("import sys\nsys.exit(0)").status == "ok"
    result = session.run("import sys\nsys.exit('no good')")
    assert (result.status, result.stderr) == ("error", "SystemExit: no good\n")
    assert session.run("raise KeyboardInterrupt").stderr.endswith("KeyboardInterrupt\n")
    assert session.run("x").stdout == "5\n"


def test_what_was_deleted_closed_or_replaced_is_there_again_in_the_next_call(session):
    session.run("x = 5")
    for code in (
        "import builtins\ndel builtins.print, builtins.len, builtins.BaseException",
        "import builtins\nbuiltins.__dict__.clear()",
        "import os\nos.close(0); os.close(1); os.close(2)",
        "import sys\nsys.stdout.close(); sys.stderr.close(); sys.stdin.close()",
        "import sys, io\nsys.stdout = sys.stderr = io.StringIO()",
        "import sys\nsys.stdout = sys.stderr = sys.__stdout__ = None",
        "import sys\ndel sys.stdout, sys.stderr",
        "import sys\nsys.stdout = sys.stderr = 5\nraise ValueError",
        "import sys\nsys.modules.clear()",
    ):
        session.run(code)
        assert session.run("print(len('abc'))\nx").stdout == "3\n5\n", code


def test_the_channel_of_the_interpreter_can_be_closed_or_written_to_without_harm(quick):
    steal = "import os, threading as t\ndef f():\n    while True: os.read(127, 1)\nt.Thread(target=f).start()"
    everywhere = "import os\nfor n in range({}, 200):\n    try: os.write(n, {!r})\n    except OSError: pass"
    garbage = (b"\xff" * 1000, b"\0\0\0\0\0\0\0\x80" * 100, b'{"status": "ok"}')
    written = [everywhere.format(first, data) for first in (0, 3) for data in garbage]
    for code in ("import os\nos.closerange(0, 1000)", steal, *written):
        # "memory": the thread has stolen a part of the request, and its length is read from the wrong place
        assert quick.run(code).status in ("ok", "error", "died", "timeout", "memory")
        after = [quick.run("print(6 * 7)") for _ in range(3)]
        assert any(result.stdout == "42\n" for result in after), (code, after)


def test_a_forged_answer_ends_the_call_and_harms_nobody_else(quick):
    code = "import os, struct, time\nos.write(127, struct.pack('<QB', 1, 0))\ntime.sleep(60)"
    assert quick.run(code).status == "ok"
    assert quick.run("1").status == "timeout"


def test_other_sessions_cannot_be_seen(box, session, sandbox):
    with box.open() as other:
        written = other.run("open('/tmp/secret', 'w').write('x')\nimport os\nos.listdir('/tmp')")
        assert ("secret" in written.stdout) == (sandbox == "namespaces")
        refused(session, "open('/tmp/secret')")
        if sandbox == "namespaces":
            assert session.run("import os\nos.listdir('/tmp')").stdout == "[]\n"
            session.run("import os, signal\nos.kill(-1, signal.SIGKILL)")
        else:
            pids = [int(one.run("import os\nos.getpid()").stdout) for one in (session, other)]
            assert refused(session, f"import os, signal\nos.kill({pids[1]}, signal.SIGKILL)")
        assert other.run("1").stdout == "1\n"


def test_what_one_session_changes_no_other_sees(box, session):
    patch = (
        "import sympy, math, builtins\nsympy.simplify = sympy.Eq = lambda *_: True\nmath.pi = 3\nbuiltins.sum = max\n"
    )
    session.run(patch + "import sympy.core.basic as b\nb.Basic.__eq__ = lambda *_: True")
    with box.open() as other:
        told = other.run(
            "import sympy, math\nx = sympy.Symbol('x')\nsympy.simplify(x - x), x == 2, math.pi, sum([1, 1])"
        )
        assert told.stdout == "(0, False, 3.141592653589793, 2)\n"
