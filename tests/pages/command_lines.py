"""Commands of shell blocks: how each is tested.

==========  ==========================================================================================================
class       how the command is tested
==========  ==========================================================================================================
run         executed: it takes seconds, writes nothing but to a folder of the test, and needs no network
parsed      its words are read by the program's own parser, settings and their files included; then it is stopped
make        ``make -n``: the target exists, and what it would run
pip         the packages are written as pip wants them; extras of envsuite exist
files       pytest, python FILE: the files that it names exist
shell       builtins of the shell, and programs that every system has: the syntax of the whole block
elsewhere   needs what is not here; ELSEWHERE says what
==========  ==========================================================================================================
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from docs.build import ROOT, is_module
from envsuite import cli

EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"])
SHELL = set(
    "export cd . source for do done echo printf mkdir cat curl openssl head set ls rm cp mv test wait kill sleep time "
    "env find xargs diff less cut sort uniq wc tail tee grep sed awk jq gzip gunzip zcat tar shuf".split()
)
ELSEWHERE = {
    "git": "clones the repository",
    "docker": "needs Docker; tests/docker checks its files",
    "kubectl": "needs Kubernetes",
    "sbatch": "needs SLURM; tests/trainers/launching submits where it is installed",
    "vf-eval": "of verifiers, no part of the extra dev; tests/examples runs it where it is installed",
    "py-spy": "of another package, attaches to a process",
    "vllm-env/bin/": "an environment with vLLM; tests/trainers/rollout runs it where ENVSUITE_VLLM_PYTHON names one",
    ".venv/bin/pre-commit": "writes into .git",
    "tensorboard": "a server that runs on",
    "inspect": "of inspect_ai, no part of the extra dev",
    "serving/bin/transformers": "an environment with transformers' server; tests/evaluation runs it where "
    "ENVSUITE_SERVE_PYTHON names one",
    "uv": "of another package, asks an index",
    "vermin": "of another package; the release needs it alone",
    "cffconvert": "of another package, which excludes versions of the extra dev",
}
"""Programs that are not tried, by the beginning of their name, each with the reason."""
WRITTEN = "what envsuite new writes; tests/core/test_scaffold.py runs this command"
PACKAGES_OF_OTHERS = {
    **dict.fromkeys(("imitate.yaml", "train.yaml"), WRITTEN),
}
"""Values of options that another package must supply, or another command, each with the reason."""
MODULES_OF_OTHERS = {"build": "of another package; tests/installation/test_wheel.py builds with it"}
"""Modules after ``python -m`` that are not tried, each with the reason."""
QUICK = (re.compile(r"envsuite (--help|envs list|envs tasks .*|data list)$"),)
"""Commands that are executed."""
PARSERS = ("parse", "parse_words", "parse_settings")
"""Names under which programs import, or define, what reads their settings."""


@dataclass(frozen=True)
class Line:
    """A command of a block."""

    words: tuple[str, ...]

    def __str__(self) -> str:
        return shlex.join(self.words)

    @property
    def program(self) -> str:
        """Its first word."""
        return self.words[0]


class Accepted(Exception):
    """Raised in place of the program, once its command line is read."""


class Refused(AssertionError):
    """A command is not as a page writes it."""


def variables(block: str) -> dict[str, str]:
    """The variables that a block exports, where the value stands there."""
    return dict(re.findall(r"^export ([A-Z_]+)=([^$\s]+)", block, re.M))


def typed(block: str) -> str:
    """The lines of a shell block that a person types: of a transcript those that begin with ``$``."""
    whole = re.sub(r"\\\n\s*", " ", block)
    entered = [line.removeprefix("$ ") for line in whole.splitlines(keepends=True) if line.startswith("$ ")]
    return "".join(entered) or whole


def lines(block: str) -> list[Line]:
    """The simple commands of a shell block, without variables, redirections and comments."""
    found = []
    for line in typed(block).splitlines():
        lexer = shlex.shlex(re.sub(r"<[a-z ]+>", "PLACEHOLDER", line), posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= set("();<>|&"):
                if set(word) & set("<>"):
                    words.append(">")
                else:
                    words = _end(words, found)
            elif words and words[-1] == ">":
                words.pop()
            else:
                words.append(word)
    return found


def _end(words: list[str], found: list[Line]) -> list[str]:
    """Enters a command, without the words of a loop and variables before it; returns the beginning of the next."""
    while words and (words[0] in ("do", "then", "{") or re.match(r"[A-Z_]+=", words[0])):
        words = words[1:]
    if words:
        found.append(Line(tuple(words)))
    return []


def kind(line: Line) -> str:
    """The class of a command; empty if it has none."""
    words, name = line.words, line.program.removeprefix(".venv/bin/")
    if reason_elsewhere(line):
        return "elsewhere"
    if line.program in SHELL:
        return "shell"
    if name == "make":
        return "make"
    if name.rpartition("/bin/")[2] == "pip" or words[:3] == ("python", "-m", "pip"):
        return "pip"
    if name == "pytest" or words[:3] == ("python", "-m", "pytest") or (name == "python" and words[1].endswith(".py")):
        return "files"
    if name == "python" and words[1] in ("-c", "-m") and words[2] == "venv":
        return "shell"
    if any(quick.match(_typed(line)) for quick in QUICK) or (name == "python" and words[1] == "-c"):
        return "run"
    if name in ("envsuite", "accelerate") or (name == "python" and words[1] == "-m"):
        return "parsed"
    return ""


def _typed(line: Line) -> str:
    return " ".join(line.words).removeprefix(".venv/bin/")


def reason_elsewhere(line: Line) -> str | None:
    """The reason for which a command is not tried."""
    for name, reason in ELSEWHERE.items():
        if line.program == name or (name.endswith("/") and any(name in word for word in line.words)):
            return reason
    if line.words[:2] == ("python", "-m") and line.words[2] in MODULES_OF_OTHERS:
        return MODULES_OF_OTHERS[line.words[2]]
    return next((reason for word, reason in PACKAGES_OF_OTHERS.items() if word in line.words), None)


def check(line: Line, folder: Path) -> None:
    """Test a command as its class says.

    Args:
        line: The command.
        folder: Where it may write.

    Raises:
        Refused: It does not work as the page writes it.
    """
    match kind(line):
        case "run":
            run(line, folder)
        case "parsed":
            accepted(line)
        case "make":
            tried = subprocess.run(["make", "-n", *line.words[1:]], cwd=ROOT, capture_output=True, text=True)
            _hold(tried.returncode == 0, line, tried.stderr)
        case "pip":
            _pip(line)
        case "files":
            _files(line)
        case "":
            raise Refused(f"{line}: no class; enter its program in tests/pages/command_lines.py")


def run(line: Line, folder: Path) -> None:
    """Execute a command; it must succeed."""
    name = line.program.removeprefix(".venv/bin/")
    program = [sys.executable, "-m", "envsuite.cli"] if name == "envsuite" else [sys.executable]
    shutil.copytree(ROOT / "configs", folder / "configs", dirs_exist_ok=True)
    done = subprocess.run([*program, *line.words[1:]], cwd=folder, capture_output=True, text=True, timeout=300)
    _hold(done.returncode == 0, line, done.stderr[-2000:])


def accepted(line: Line) -> None:
    """Have the program read its command line, in this process, and stop it there."""
    module, words = _target(line)
    _hold(is_module(module), line, f"no module {module}")
    words = [_filled(word) for word in words]
    loaded = importlib.import_module(module if not _is_package(module) else f"{module}.__main__")
    inside = loaded if module != "envsuite.cli" else _program(words)
    said = io.StringIO()
    with _stopping(inside), contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        with contextlib.chdir(ROOT), mock.patch.object(sys, "argv", [module, *words]):
            try:
                loaded.main()
            except Accepted:
                return
            except SystemExit as ended:
                _hold(ended.code in (0, None), line, said.getvalue())
                return
    raise Refused(f"{line}: {said.getvalue()[-2000:] or 'read no command line'}")


def _target(line: Line) -> tuple[str, list[str]]:
    """The module that a command runs, and its words."""
    words = list(line.words)
    if words[0].removeprefix(".venv/bin/") == "envsuite":
        return "envsuite.cli", words[1:]
    if words[0] == "accelerate":
        from accelerate.commands.launch import launch_command_parser

        launched = launch_command_parser().parse_args(words[2:])
        _hold(bool(launched.module), line, "accelerate is not told -m")
        if launched.config_file is not None:
            _hold((ROOT / launched.config_file).is_file(), line, f"no file {launched.config_file}")
        return launched.training_script, launched.training_script_args
    return words[2], words[3:]


def _program(words: list[str]) -> object:
    """The module that runs a command of ``envsuite``, or its command line where that reads the words."""
    if words[:1] in ([], ["--help"], ["--version"]):
        return cli
    _, command, _ = cli.find(words, cli.available())
    module, _, function = command.entry.partition(":")
    return importlib.import_module(module) if function else cli


def _filled(word: str) -> str:
    """A word without the marks of what may be left out or repeated; a file for CONFIG, 1 for a variable of a loop."""
    if word == "CONFIG":
        return "configs/textcraft.yaml"
    word = re.sub(r"\$[a-z]+", "1", word.removeprefix("[") if word.startswith("[--") else word)
    return re.sub(r"(?<=[A-Z])(?:\.\.\.|…)$", "", word if "[" in word else word.removesuffix("]"))


def _is_package(module: str) -> bool:
    return (ROOT / module.replace(".", "/")).is_dir()


@contextlib.contextmanager
def _stopping(module: object) -> Iterator[None]:
    """Programs end with ``Accepted`` when they have read their command line."""

    def stopped(real: Callable[..., object]) -> Callable[..., None]:
        def reading(*args: object, **kwargs: object) -> None:
            real(*args, **kwargs)
            raise Accepted

        return reading

    with contextlib.ExitStack() as patches:
        parse_args = argparse.ArgumentParser.parse_args
        patches.enter_context(mock.patch.object(argparse.ArgumentParser, "parse_args", stopped(parse_args)))
        from trainers.run import cli as run_cli

        patches.enter_context(mock.patch.object(run_cli, "parse", stopped(run_cli.parse)))
        for name in PARSERS:
            real = vars(module).get(name)
            if callable(real):
                patches.enter_context(mock.patch.object(module, name, stopped(real)))
        yield


def _pip(line: Line) -> None:
    from packaging.requirements import Requirement

    words = line.words[3:] if line.program == "python" else line.words[1:]
    for word in words[1:]:
        if not word.startswith("-"):
            requirement = Requirement(re.sub(r"^\.(?=\[)", "envsuite", word))
            unknown = requirement.extras - EXTRAS if requirement.name == "envsuite" else set()
            _hold(not unknown, line, f"no extra {unknown}")


def _files(line: Line) -> None:
    words: Sequence[str] = line.words[1:]
    for word in words:
        if word.startswith(("tests/", "examples/", "tools/", "benchmarks/")):
            _hold((ROOT / word.partition("::")[0]).exists(), line, f"no file {word}")


def _hold(true: bool, line: Line, why: str) -> None:
    if not true:
        raise Refused(f"{line}: {why}")
