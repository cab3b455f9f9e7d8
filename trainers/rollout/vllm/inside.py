"""vLLM in the trainer's own process, where it samples while it is polled."""

from __future__ import annotations

import gc
import os
import random
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

from envsuite.core.errors import UsageError
from envsuite.playing.engine import Completion, EngineFailed, Sampling
from trainers.rollout.engine import EngineSetup, refusal_completion
from trainers.rollout.vllm.completions import settings_of
from trainers.rollout.vllm.host import Sleeping, VLLMAnswer, VLLMHost, VLLMRefused
from trainers.rollout.vllm.rows import VLLMRow, VLLMRows
from trainers.rollout.vllm.starting import EXTENSION_FOLDER, arguments_for, write_configuration
from trainers.settings import ConfigError


class InProcessHost(VLLMHost):
    """vLLM in this process, on the device of the trainer.

    It is vLLM's ``LLMEngine`` with its core in the process itself. Where the run has several processes each has one of
    its own, which takes part in the trainer's process group.

    Args:
        setup: The parts of the run.
        memory: Share of the device's memory that it may take; by default vLLM's.
        arguments: Further arguments of vLLM, without their ``--``.

    Raises:
        ConfigError: vLLM does not take the arguments.
        EngineFailed: It does not start.
    """

    def __init__(self, setup: EngineSetup, memory: float | None, arguments: Mapping[str, Any]) -> None:
        super().__init__("vLLM in this process")
        accelerator = setup.accelerator
        self.process = 0 if accelerator is None else accelerator.process_index
        """Number of this process."""
        self._folder = write_configuration(setup.model, setup.tokenizer)
        several = accelerator is not None and accelerator.num_processes > 1
        on_cpu, dtype = setup.device.type == "cpu", setup.config.compute_dtype
        words = arguments_for(setup.model, dtype, on_cpu=on_cpu, memory=memory, arguments=arguments)
        words += ["--model", str(self._folder), "--disable-log-stats"]
        words += ["--distributed-executor-backend", "external_launcher" if several else "uni"]
        self._own_group = not torch.distributed.is_initialized()
        self._adapters = 0
        try:
            with self._failing("it does not start"), _preserve_process(setup.device):
                self._engine = _start_vllm(words)
        except (ConfigError, EngineFailed):
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    # -- requests --------------------------------------------------------------------------------------------------

    def begin(self, key: str, prompt: Sequence[int], sampling: Sampling, seed: int) -> None:
        """Has a prompt continued under ``key``.

        Raises:
            VLLMRefused: vLLM does not take it.
        """
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt
        from vllm.lora.request import LoRARequest
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(**settings_of(sampling, seed), detokenize=False, output_kind=RequestOutputKind.DELTA)
        lora = LoRARequest(self.adapter, self._adapters, "loaded") if self.adapter else None
        with self._failing("it cannot take a request"):
            try:
                self._engine.add_request(key, TokensPrompt(prompt_token_ids=[*prompt]), params, lora_request=lora)
            except ValueError as error:
                raise VLLMRefused(400, str(error)) from error

    def step(self) -> list[tuple[str, VLLMAnswer, bool]]:
        """Samples a token of each request under way; returns keys, what is new, and whether that was the last."""
        with self._failing("it cannot go on"):
            outputs = self._engine.step()
        answers = []
        for output in outputs:
            (new,) = output.outputs
            ids = [*new.token_ids]
            logprobs = [float(top[token].logprob) for token, top in zip(ids, new.logprobs or (), strict=True)]
            answer = VLLMAnswer(ids, logprobs, str(new.finish_reason))
            answers.append((output.request_id, answer, bool(output.finished)))
        return answers

    def drop(self, keys: Sequence[str]) -> None:
        """Ends requests under way."""
        with self._failing("it cannot end requests"):
            self._engine.abort_request([*keys])

    def ask(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seed: int, replica: int | None = None
    ) -> list[VLLMAnswer]:
        """Continues prompts; nothing else may be under way."""
        parts: dict[str, list[VLLMAnswer]] = {f"asked-{i}": [] for i in range(len(prompts))}
        for key, prompt in zip(parts, prompts, strict=True):
            self.begin(key, prompt, sampling, seed)
        open_keys = set(parts)
        while open_keys:
            for key, answer, last in self.step():
                parts[key].append(answer)
                open_keys -= {key} if last else set()
        return [
            VLLMAnswer(
                [i for part in own for i in part.ids], [x for part in own for x in part.logprobs], own[-1].reason
            )
            for own in parts.values()
        ]

    # -- the contract ----------------------------------------------------------------------------------------------

    def call(self, method: str, *arguments: Any) -> list[dict[str, Any]]:
        """Calls a method of the trainer's worker extension, whose arguments may be any objects."""
        with self._failing(method):
            results: list[dict[str, Any]] = self._engine.collective_rpc(method, args=arguments)
        for result in results:
            if "error" in result:
                raise self.failure(f"{method}: {result['error']}")
        return results

    def learn_model(self) -> int:
        """Most tokens of a sequence that it takes."""
        return int(self._engine.model_config.max_model_len)

    def pause(self) -> None:
        """Drops what was computed; nothing may be under way."""
        with self._failing("it does not pause"):
            is_empty = self._engine.reset_prefix_cache()
        if not is_empty:
            raise self.failure("it does not drop what it computed with earlier weights")

    def resume(self) -> None:
        """Nothing: it samples when it is polled."""

    def sleep(self, level: int) -> None:
        """Gives back its memory."""
        with self._failing("it does not give back its memory"):
            self._engine.sleep(level)

    def wake_up(self, what: Sleeping) -> None:
        """Takes a part of its memory again."""
        with self._failing(f"it does not get back its memory ({what})"):
            self._engine.wake_up([what])

    def put_adapter(self, name: str, folder: Path) -> None:
        """Loads the adapter in ``folder`` in place of the last one."""
        from vllm.lora.request import LoRARequest

        before = self._adapters
        self._adapters += 1
        with self._failing("it does not take the adapter"):
            self._engine.add_lora(LoRARequest(name, self._adapters, str(folder)))
            if before:
                self._engine.remove_lora(before)

    def close(self) -> None:
        """Ends it; a process group that the trainer made stays."""
        shutil.rmtree(self._folder, ignore_errors=True)
        client = self._engine.engine_core
        if self._own_group:
            client.shutdown()
        elif client._finalizer.detach() is not None:  # vLLM's own end would be that of the trainer's group, too
            client.engine_core.model_executor.shutdown()
            client.engine_core.scheduler.shutdown()

    @contextmanager
    def _failing(self, how: str) -> Iterator[None]:
        """Raises what vLLM raises in the block as :class:`EngineFailed`, so that the run writes a checkpoint."""
        try:
            yield
        except (VLLMRefused, ConfigError):
            raise
        except Exception as error:  # vLLM's and torch's own, of many classes, such as memory that runs out
            raise self.failure(f"{how}: {type(error).__name__}: {error}") from error


class InProcessRows(VLLMRows[InProcessHost]):
    """Completes rows step by step, while somebody polls.

    Args:
        inside: Has nothing under way.
    """

    def __init__(self, inside: InProcessHost) -> None:
        self._inside = inside
        self._rows: dict[str, VLLMRow[InProcessHost]] = {}
        self._done: list[Completion] = []
        self._held, self._number = False, 0

    def submit(self, row: VLLMRow[InProcessHost]) -> None:
        """Queues a row."""
        self._number += 1
        self._rows[str(self._number)] = row
        if not self._held:
            self._begin(str(self._number), row)

    def finish(self, completion: Completion) -> None:
        """Queues the answer to a request that vLLM is not asked."""
        self._done.append(completion)

    def poll(self, timeout: float | None) -> list[Completion]:
        """Samples until a row is complete, or the time is up; some of the work is done whatever the timeout.

        Raises:
            UsageError: The engine rests.
            EngineFailed: vLLM cannot go on.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while self._rows and not self._done:
            if self._held:
                raise UsageError("vLLM has no weights to go on with, as it rests or an update failed; call sync first")
            self._step()
            if until is not None and time.monotonic() >= until:
                break
        completions, self._done = self._done, []
        return completions

    def hold(self) -> None:
        """Ends rows under way, and has vLLM drop what it computed."""
        if not self._held:
            self._held = True
            self._inside.drop([*self._rows])
        self._inside.pause()

    def go_on(self) -> None:
        """Lets rows go on, from the tokens that they have."""
        self._held = False
        for key, row in [*self._rows.items()]:
            self._begin(key, row)

    def close(self) -> None:
        """Ends rows under way."""
        self._rows = {}

    def _begin(self, key: str, row: VLLMRow[InProcessHost]) -> None:
        try:
            self._inside.begin(key, *row.remaining())
        except VLLMRefused as error:
            del self._rows[key]
            self._done.append(refusal_completion(row.request, "error", f"{self._inside.name}: {error}"))

    def _step(self) -> None:
        for key, answer, last in self._inside.step():
            row = self._rows[key]
            row.add(answer, self.version)
            if last:
                del self._rows[key]
                self._done.append(row.completion(answer.reason))


def _start_vllm(words: Sequence[str]) -> Any:
    """Starts vLLM's engine with these arguments of its command line."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    if str(EXTENSION_FOLDER) not in sys.path:
        sys.path.append(str(EXTENSION_FOLDER))
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.engine.llm_engine import LLMEngine
    from vllm.v1.executor.uniproc_executor import ExecutorWithExternalLauncher, UniProcExecutor

    # Each process has a whole model and its own memory: one that fails here leaves no other in a collective operation.
    ExecutorWithExternalLauncher.determine_available_memory = UniProcExecutor.determine_available_memory

    class Parser(FlexibleArgumentParser):  # type: ignore[misc]
        """Raises, where the parser of a program would end it."""

        def error(self, message: str) -> NoReturn:
            raise ConfigError(f"rollout.engine_options.arguments: vLLM says: {message}")

    return LLMEngine.from_engine_args(EngineArgs.from_cli_args(EngineArgs.add_cli_args(Parser()).parse_args([*words])))


@contextmanager
def _preserve_process(device: torch.device) -> Iterator[None]:
    """Puts back what vLLM sets in its process: random numbers, threads, and variables other than its own."""
    environment, threads, setter = dict(os.environ), torch.get_num_threads(), torch.set_num_threads
    python, arrays = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)
        torch.set_num_threads = setter
        torch.set_num_threads(threads)
        gc.unfreeze()
        for name in [name for name in os.environ if not name.startswith("VLLM_")]:
            if name not in environment:
                del os.environ[name]
        os.environ.update({name: value for name, value in environment.items() if not name.startswith("VLLM_")})
