"""A vLLM server that this program starts, for itself alone."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from envsuite.installation.vllm import VARIABLE, look_up_vllm, vllm_python
from envsuite.playing.engine import EngineFailed
from trainers.rollout.vllm.connection import VLLMConnection
from trainers.rollout.vllm.starting import EXTENSION_FOLDER, arguments_for, gpu_count, write_configuration
from trainers.settings import ConfigError

_LOG = logging.getLogger(__name__)
_START_SECONDS = 900.0  # a large model on a GPU is loaded and compiled for minutes
_ERROR = re.compile(r"(?:^|\] )([A-Z]\w*(?:Error|Exception): \S.{0,300})")
_LOCAL = (("LOCAL_WORLD_SIZE", "1"), ("LOCAL_RANK", "0"))
_LAST_LINES = 12  # of the server's log, in messages


class ChildServer(VLLMConnection):
    """Starts a server on this machine, reachable from it alone; it ends with this program, however that ends.

    It reads no weights from disk: it has random ones until it is given others.

    Args:
        python: Interpreter that has vLLM.
        model: The policy.
        device: The trainer's; on CUDA the server takes the same GPU, and with several those that nobody trains on.
        tokenizer: The policy's.
        dtype: Number format.
        memory: Share of the device's memory that it may take; by default vLLM's.
        arguments: Further arguments of the server, without their ``--``; ``True`` stands for one without a value.
        patience, timeout: As :class:`~trainers.rollout.vllm.connection.VLLMConnection`.

    Raises:
        EngineFailed: It does not start; with the end of its log.
    """

    def __init__(
        self,
        python: str,
        model: PreTrainedModel,
        device: torch.device,
        tokenizer: PreTrainedTokenizerBase,
        dtype: str,
        memory: float | None,
        arguments: Mapping[str, Any],
        *,
        patience: float,
        timeout: float,
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:  # a port that is free
            self._port: int = listening.getsockname()[1]
        super().__init__(f"http://127.0.0.1:{self._port}", patience=patience, timeout=timeout)
        self._folder = write_configuration(model, tokenizer)
        words = arguments_for(model, dtype, on_cpu=device.type == "cpu", memory=memory, arguments=arguments)
        words += ["--model", str(self._folder), "--host", "127.0.0.1", "--port", str(self._port)]
        words.append("--disable-uvicorn-access-log")
        self._log = tempfile.NamedTemporaryFile(prefix="vllm-", suffix=".log", delete=False)
        self._process = subprocess.Popen(
            [python, "-m", "envsuite_serve", str(os.getpid()), *words],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=_environment(python, device, further_gpus(gpu_count(arguments))),
            process_group=0,
        )
        _LOG.info("starting a vLLM server (pid %d, log %s): %s", self._process.pid, self._log.name, " ".join(words))
        try:
            self._await_start()
        except BaseException:
            self.close()
            raise

    def end_reason(self) -> str | None:
        """Why it has ended; ``None`` while it runs."""
        status = self._process.poll()
        if status is None:
            return None
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"exited with code {status}"
        lines = Path(self._log.name).read_text(errors="replace").splitlines()
        error, last = first_error(lines), "\n".join(lines[-_LAST_LINES:])
        return f"it {how}{error and f' after: {error}'}\nThe end of {self._log.name}:\n{last}"

    def close(self) -> None:
        """Ends the server; the log of one that has not failed is removed."""
        super().close()
        has_failed = self._process.poll() is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10.0)
        with contextlib.suppress(ProcessLookupError, PermissionError):  # its workers
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        if not has_failed:
            Path(self._log.name).unlink(missing_ok=True)

    def _await_start(self) -> None:
        until = time.monotonic() + _START_SECONDS
        while time.monotonic() < until:
            if (reason := self.end_reason()) is not None:
                raise EngineFailed(f"the vLLM server did not start: {reason}")
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 1.0):
                return  # it listens once the model is loaded
            time.sleep(0.5)
        raise EngineFailed(f"the vLLM server did not start in {_START_SECONDS:.0f} s; see {self._log.name}")


def first_error(lines: Sequence[str]) -> str:
    """The first error in the log of a server; empty if there is none."""
    return next((match[1] for line in lines if (match := _ERROR.search(line))), "")


def check_interpreter(python: str | None, *, here: bool = False) -> None:
    """Checks the interpreter that starts servers, and says in a line which vLLM it has.

    Args:
        python: The one that is named.
        here: vLLM runs in this process, and so with this interpreter.

    Raises:
        ConfigError: It does not exist, has no vLLM, or one that its torch does not go with.
    """
    path = sys.executable if here else vllm_python(python)
    if shutil.which(path) is None:
        raise ConfigError(f"rollout.engine_options.python: there is no interpreter {path}")
    installation = look_up_vllm(path)
    if installation.version is None:
        remedy = f"name one that has with rollout.engine_options.python or {VARIABLE}, or running servers with urls"
        if here:
            remedy = "place is process, so start the trainer with one that has, or leave place out for a server"
        raise ConfigError(f"rollout.engine_options: {path} has no vLLM; {remedy} (docs/engine.md)")
    if installation.problem:
        raise ConfigError(f"rollout.engine_options: {installation.problem}")
    _LOG.log(logging.INFO if installation.is_tested else logging.WARNING, "%s", installation)


def further_gpus(count: int) -> range:
    """The GPUs that the server of this process takes besides its own, of ``count``: no process here trains on them.

    Raises:
        ConfigError: There are too few.
    """
    processes, rank = (int(os.environ.get(name, default)) for name, default in _LOCAL)
    present, first = torch.cuda.device_count(), processes + rank * (count - 1)
    if present and count > 1 and processes * count > present:
        raise ConfigError(
            f"rollout.engine_options: arguments spread a server over {count} GPUs, each of {processes} process(es) "
            f"starts one, and this machine has {present} GPU(s); spread it over fewer, or take running servers (urls)"
        )
    return range(first, first + count - 1)


def _environment(python: str, device: torch.device, further: Sequence[int] = ()) -> dict[str, str]:
    """The program's own, and what a server needs; the user's settings take precedence."""
    prefixes = ("ACCELERATE_", "MASTER_", "TORCHELASTIC_", "WORLD_SIZE", "RANK", "LOCAL_", "GROUP_", "ROLE_")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
    path = [str(EXTENSION_FOLDER)]
    if python == sys.executable and "PYTHONPATH" in variables:  # another interpreter has packages of its own
        path.append(variables["PYTHONPATH"])
    variables |= {
        "PYTHONPATH": os.pathsep.join(path),
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    }
    if device.type == "cuda":
        visible = variables.get("CUDA_VISIBLE_DEVICES", "").split(",")
        gpus = [device.index or 0, *further]
        names = [visible[gpu] if len(visible) > gpu and visible[0] else str(gpu) for gpu in gpus]
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(names)
    return {"VLLM_NO_USAGE_STATS": "1", **variables}
