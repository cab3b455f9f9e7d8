"""A run that starts again by itself: after which ends it does, from where it goes on, and what that cost.

torch's elastic agent (``torchrun``, ``accelerate launch``) starts all processes again when one of them ends with a
status other than 0, whatever the reason, until ``--max-restarts`` is used up. So each process that ends leaves its
verdict in the folder of the run, which all machines share. Those of the next attempt read it before they load
anything, and end with the same status where the reason would end them again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import orjson

from envsuite.core.errors import DataError, EnvsuiteError, UnknownName, WorkerLost
from envsuite.data.files import write_atomically
from envsuite.exits import MENDABLE, is_full
from trainers.report.events import RunEvent, read_events, write_event
from trainers.settings import ConfigError

if TYPE_CHECKING:
    from accelerate import Accelerator

    from trainers.run.progress import RunProgress

Kind = Literal["lost", "unsure", "final"]
KINDS: tuple[Kind, ...] = ("lost", "unsure", "final")
"""``lost`` is started again; ``unsure``, too, but not twice at one iteration; ``final`` is not. A later one counts."""
SILENT = "a process was killed, or ended without a word"
LOCK_SECONDS = 120.0
"""Seconds that a run which is started again waits for the lock of its folder."""
_FINAL = (
    *(int, EnvsuiteError, ArithmeticError, AssertionError, AttributeError, ImportError, LookupError),
    *(MemoryError, NameError, NotImplementedError, RecursionError, SyntaxError, TypeError, ValueError),
)


def kind_of(how: BaseException | int) -> Kind:
    """Whether what has ended a process would end it again; a process that was killed says nothing, and is ``lost``.

    Args:
        how: Its status where it ended by itself (a signal asked it to stop, an alarm paused the run), else the error.
    """
    from torch.distributed import DistError

    from envsuite.playing.engine import EngineFailed
    from trainers.processes.distributed import PeerFailed
    from trainers.processes.memory import ran_out
    from trainers.rollout.vllm.host import HostGone
    from trainers.run.rollouts import EpisodesFailed

    gloo = isinstance(how, RuntimeError) and not isinstance(how, EnvsuiteError) and "gloo" in str(how).lower()
    if gloo or isinstance(how, PeerFailed | DistError | WorkerLost | HostGone | ConnectionError | TimeoutError):
        return "lost"  # processes, servers, connections
    if isinstance(how, EngineFailed | EpisodesFailed):  # of a server that was killed, or cannot do it
        return "unsure"
    if isinstance(how, _FINAL) or ran_out(how) or (isinstance(how, Exception) and is_full(how)):
        return "final"
    return "unsure"


@dataclass(frozen=True)
class Verdict:
    """How an attempt has ended."""

    kind: Kind
    status: int
    reason: str
    """One line."""


class Restarts:
    """Reads how the attempts before this process ended, and leaves how it ends for those after it.

    Args:
        folder: The run's.
        environment: As torch's agent sets it; without an agent nothing is read or left.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str] = os.environ) -> None:
        self.folder = folder
        self.attempt = int(environment.get("TORCHELASTIC_RESTART_COUNT", "0"))
        """Attempts before this one, as the agent of this machine counts them."""
        self.watched = int(environment.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0
        """Whether an agent starts processes again."""
        names = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")
        own_store = environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True"  # of each attempt, at another port
        launch = " ".join(environment.get(name, "") for name in names[: 1 if own_store else 3])
        self._file = folder / f".ended-{hashlib.sha256(launch.encode()).hexdigest()[:12]}.json"
        self._first = environment.get("RANK", "0") == "0"
        own, rank = agents_folder(environment), environment.get("LOCAL_RANK", "0")
        mark = None if own is None else own / f"trainers-attempt-{rank}"
        before = int(mark.read_text()) if mark is not None and mark.exists() else None
        self.again = self.attempt > 0 or before is not None
        """Whether this process stands for an earlier one."""
        self.moved = before == self.attempt
        """Whether the agent started it again because machines joined, which it does not count."""
        self._begun = 0.0 if own is None else _time(own / "attempt_0")
        if mark is not None:
            mark.write_text(str(self.attempt))

    def status(self) -> int | None:
        """The status with which to end at once; ``None`` where the run is to go on.

        The first process of a launch removes what an earlier one left.
        """
        if not self.again and self._first and self.watched:
            self._file.unlink(missing_ok=True)
        verdict = _read(self._file) if self.again else None
        if verdict is None or verdict.kind != "final" or (self.moved and verdict.status > 128):
            return None
        return verdict.status

    def leave_verdict(self, how: BaseException | int) -> None:
        """Leaves the verdict on the end of this process, unless another process has left a graver one."""
        if not self.watched:
            return
        reason = f"status {how}" if isinstance(how, int) else _line(how)
        kind = kind_of(how)
        if kind == "unsure" and self._is_repeated(reason):
            kind = "final"
        status = how if isinstance(how, int) else MENDABLE if isinstance(how, ConfigError | UnknownName) else 1
        there, content = _read(self._file), orjson.dumps(asdict(Verdict(kind, status, reason)))
        with contextlib.suppress(OSError):
            if kind == "final" or (there is not None and KINDS.index(there.kind) < KINDS.index(kind)):
                write_atomically(self._file, content)
            elif there is None:
                self.folder.mkdir(parents=True, exist_ok=True)
                with self._file.open("xb") as file:  # fails where one is there that this machine does not see yet
                    file.write(content)

    def _is_repeated(self, reason: str) -> bool:
        """Whether the run was lost before at this iteration, and said the same but for numbers."""
        with contextlib.suppress(DataError):
            before = [event.facts for event in read_events(self.folder) if event.kind == "restart"][-1:]
            losses = [(facts["reason"], facts["checkpoint_iteration"] + facts["lost_iterations"]) for facts in before]
            now = (_without_numbers(reason), self._last_iteration())
            return [(_without_numbers(text), k) for text, k in losses] == [now]
        return False

    def go_on(self, accelerator: Accelerator, resume: str | None, progress: RunProgress) -> str | None:
        """From where the run goes on, as ``--resume`` takes it, the same in all processes; each must call this.

        The first process tells of the restart and what it cost; it has the lock of the folder.

        Args:
            accelerator: The run's.
            resume: What the command line says.
            progress: Display.
        """
        from trainers.processes.distributed import all_gather_object, first_value, sharing_failures

        starts = all_gather_object(accelerator, (self.again, self.attempt))
        checkpoint = resume
        with sharing_failures(accelerator):
            if any(again for again, _ in starts) and accelerator.is_main_process:
                checkpoint = self._find_checkpoint(resume, max(attempt for _, attempt in starts), progress)
            if accelerator.is_main_process:
                for file in self.folder.glob(".ended-*.json"):
                    file.unlink()
        return first_value(accelerator, checkpoint)

    def _find_checkpoint(self, resume: str | None, attempt: int, progress: RunProgress) -> str | None:
        from trainers.run.checkpoint import MANIFEST, iteration_of, newest

        verdict, last_iteration = _read(self._file), self._last_iteration()
        resume_folder = None if resume is None or resume == "auto" else Path(resume)
        # With a folder given, others beside it may be of a run that this one left there.
        checkpoint = newest(self.folder / "checkpoints", 0.0 if resume_folder is None else self._begun) or resume_folder
        iteration = 0 if checkpoint is None else iteration_of(checkpoint)
        files = (self.folder / "config.yaml", *([] if checkpoint is None else [checkpoint / MANIFEST]))
        since = max(map(_time, files))
        seconds = round(max(0.0, time.time() - since), 1) if since else 0.0
        reason = SILENT if verdict is None else verdict.reason
        gap = max(0, last_iteration - iteration)
        where = "the beginning" if checkpoint is None else f"iteration {iteration}"
        text = f"started again (attempt {attempt}) from {where}, {gap} iteration(s) and {seconds:.0f} s lost: {reason}"
        facts = {
            "attempt": attempt, "reason": reason, "checkpoint_iteration": iteration, "lost_iterations": gap,
            "lost_seconds": seconds,
        }  # fmt: skip
        write_event(self.folder, RunEvent("restart", iteration, text, facts))
        progress.message(text)
        return resume if checkpoint is None else str(checkpoint)

    def _last_iteration(self) -> int:
        """Iterations that had been finished, as the metrics tell; their last line may be incomplete."""
        with contextlib.suppress(OSError):
            for line in reversed((self.folder / "metrics.jsonl").read_bytes().splitlines()):
                with contextlib.suppress(orjson.JSONDecodeError, TypeError, KeyError):
                    return int(orjson.loads(line)["iteration"])
        return 0


def final_status(folder: Path, since: float) -> int | None:
    """The status of a run that has ended for a reason that would end it again; ``None`` where it has not.

    Args:
        folder: The run's.
        since: When it was started (seconds since 1970).
    """
    verdicts = [_read(file) for file in folder.glob(".ended-*.json") if _time(file) >= since]
    return next((verdict.status for verdict in verdicts if verdict is not None and verdict.kind == "final"), None)


def agents_folder(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The folder that torch's agent keeps on this machine for all its attempts; ``None`` without an agent."""
    file = environment.get("TORCHELASTIC_ERROR_FILE")
    return Path(file).parents[2] if file else None


def first_time(text: str) -> bool:
    """Whether this process is to say ``text``: no process of any attempt on this machine has said it."""
    if (own := agents_folder()) is None:
        return os.environ.get("RANK", "0") == "0"
    try:
        (own / f"trainers-said-{hashlib.sha256(text.encode()).hexdigest()}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _read(file: Path) -> Verdict | None:
    with contextlib.suppress(OSError, orjson.JSONDecodeError, TypeError):
        return Verdict(**orjson.loads(file.read_bytes()))
    return None


def _line(error: BaseException) -> str:
    text = (str(error).strip().splitlines() or [""])[0]
    return text if isinstance(error, EnvsuiteError) and text else f"{type(error).__name__}: {text}"


def _without_numbers(text: str) -> str:
    return re.sub(r"\d+", "#", text)


def _time(path: Path) -> float:
    return path.stat().st_mtime if path.exists() else 0.0
