"""Checks in a process of their own, because they may crash, hang, or take long to import."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

TORCH = """
import json, torch
told = {"version": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip, "devices": []}
told["available"] = torch.cuda.is_available()
for index in range(torch.cuda.device_count() if told["available"] else 0):
    about = torch.cuda.get_device_properties(index)
    told["devices"].append({"name": about.name, "memory": about.total_memory, "capability": [about.major, about.minor]})
told["bf16"] = told["available"] and torch.cuda.is_bf16_supported(including_emulation=False)
told["mps"] = torch.backends.mps.is_available()
try:
    import torch.nn.attention.flex_attention
    told["flex"] = True
except ImportError:
    told["flex"] = False
print(json.dumps(told))
"""
IMPORTS = """
import importlib, json, sys
for name in sys.argv[1:]:
    print(json.dumps({"trying": name}), flush=True)
    try:
        importlib.import_module(name)
        print(json.dumps({"works": name}), flush=True)
    except BaseException as error:  # a package may fail in any way, SystemExit too; the others are still tried
        print(json.dumps({"fails": name, "why": f"{type(error).__name__}: {error}"}), flush=True)
"""
PRODUCTS = """
import json
from trainers.processes.cpu import bfloat16_is_slow, product_speed
told = {name: product_speed(name) for name in ("float32", "bfloat16")}
print(json.dumps({**told, "slow": bfloat16_is_slow()}))
"""
SANDBOX = """
import json, sys
from envsuite.interpreter import open_interpreter
from envsuite.interpreter.registry import ISOLATED
told = {}
for name in ISOLATED:
    try:
        session = open_interpreter(name).open()
        told[name] = "" if session.run("print(6 * 7)").stdout == "42\\n" else "it runs no code"
        session.close()
    except Exception as error:  # an interpreter may fail in any way; the others are still tried
        told[name] = f"{type(error).__name__}: {error}"
print(json.dumps(told))
"""


@dataclass(frozen=True)
class ProbeOutput:
    """Output and exit status of a process."""

    code: int | None
    """Exit status; ``None`` if it did not end in time or could not be started."""
    out: str
    why: str
    """The last line of its errors, or why there is none."""


def ask(command: list[str], seconds: float) -> ProbeOutput:
    """Runs a command without a shell; never raises for what is wrong with the command."""
    try:
        run = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=False,
            encoding="utf-8",
            errors="replace",
        )
    except subprocess.TimeoutExpired as error:
        out = error.stdout.decode("utf-8", "replace") if isinstance(error.stdout, bytes) else ""
        return ProbeOutput(None, out, f"gave no answer within {seconds:g} s")
    except OSError as error:
        return ProbeOutput(None, "", f"{command[0]} cannot be started ({error.strerror or error})")
    lines = [line for line in run.stderr.splitlines() if line.strip()]
    why = lines[-1].strip() if lines else f"exit status {run.returncode}"
    return ProbeOutput(run.returncode, run.stdout, f"signal {-run.returncode}" if run.returncode < 0 else why)


def python(code: str, *arguments: str, seconds: float = 120.0) -> ProbeOutput:
    """Runs Python code in a new interpreter of this environment."""
    return ask([sys.executable, "-c", code, *arguments], seconds)


def module(name: str, *arguments: str, seconds: float = 120.0) -> ProbeOutput:
    """Runs ``python -m NAME`` of this environment."""
    return ask([sys.executable, "-m", name, *arguments], seconds)


def tool(name: str, *arguments: str, seconds: float = 20.0) -> ProbeOutput | None:
    """Runs a program of the path; ``None`` if there is none of that name."""
    path = shutil.which(name)
    return None if path is None else ask([path, *arguments], seconds)


def last_object(out: str) -> dict[str, Any] | None:
    """Returns the JSON object of the last line that is one; libraries may have written others before."""
    for line in reversed(out.splitlines()):
        try:
            document = json.loads(line)
        except ValueError:
            continue
        if isinstance(document, dict):
            return document
    return None


def try_imports(names: list[str]) -> dict[str, str]:
    """Imports each module, in one process where none ends it.

    Returns:
        Module -> why it cannot be imported; empty for those that can.
    """
    return try_names(names, [sys.executable, "-c", IMPORTS])


def try_names(names: list[str], command: list[str], seconds: float = 120.0) -> dict[str, str]:
    """Has a process try each thing; where one ends the process, the rest is tried in another.

    Args:
        names: What to try.
        command: Takes names as arguments, and writes a line before each and one after it, as :data:`IMPORTS` does.
        seconds: Limit of one process.

    Returns:
        Name -> why it does not work; empty for those that do.
    """
    reasons, waiting = dict[str, str](), list(names)
    while waiting:
        probe = ask([*command, *waiting], seconds)
        current = waiting[0]
        for line in probe.out.splitlines():
            entry = last_object(line) or {}
            current = entry.get("trying", current)
            if "works" in entry:
                reasons[entry["works"]] = ""
            elif "fails" in entry:
                reasons[entry["fails"]] = entry["why"].splitlines()[0]
        if current in waiting and current not in reasons:
            reasons[current] = f"it ends the process: {probe.why}"
        waiting = [name for name in waiting if name not in reasons]
    return reasons
