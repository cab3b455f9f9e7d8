"""Which tiny models of ``benchmarks.families`` vLLM loads on a CPU, and whether its log-probabilities are the same."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from transformers import PreTrainedModel

from envsuite.core.errors import UsageError

RESULTS = Path(__file__).with_suffix(".json")
NEAR = 1e-3  # nats, float32
SECONDS = 600.0  # for a model, on a busy machine
MOST_USED = (
    "llama", "qwen2", "qwen3", "qwen3_5_text", "gemma3_text", "mistral", "mixtral", "phi3", "olmo2", "glm4", "gpt_oss",
    "granite", "lfm2", "qwen3_moe", "deepseek_v3", "nemotron_h", "bamba", "falcon_h1", "qwen3_next", "gemma2", "gpt2",
)  # fmt: skip
_SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1", "TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1",
    "PYTHONSAFEPATH": "1",  # this folder has a queue.py
}  # fmt: skip
Ask = Callable[[dict[str, Any]], dict[str, Any]]


def known_results(file: Path = RESULTS) -> dict[str, str]:
    """The result of each family that the file has."""
    groups: dict[str, str] = json.loads(file.read_text()) if file.exists() else {}
    return {name: result for result, names in groups.items() for name in names.split()}


def record(name: str, result: str, file: Path = RESULTS) -> None:
    """Writes a family's result into the file, beside those of the others."""
    now = known_results(file) | {name: result}
    groups = {result: " ".join(sorted(n for n in now if now[n] == result)) for result in sorted(set(now.values()))}
    file.write_text(json.dumps(groups, indent=2) + "\n")


@contextmanager
def asking(python: str) -> Iterator[tuple[Ask, frozenset[str]]]:
    """An interpreter with vLLM that answers prompts, and the architectures in its registry.

    Raises:
        UsageError: It does not import vLLM.
    """
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")}
    with subprocess.Popen(
        [python, str(Path(__file__).with_name("families_vllm_worker.py")), str(SECONDS)], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=_SETTINGS | kept,
    ) as process:  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        into, lines = process.stdin, process.stdout
        if not (first := lines.readline()):
            raise UsageError(f"--vllm: {python} does not import vLLM; docs/engine.md says how to make one that does")

        def ask(asked: dict[str, Any]) -> dict[str, Any]:
            into.write(json.dumps(asked) + "\n")
            into.flush()
            said: dict[str, Any] = json.loads(lines.readline())
            return said

        try:
            yield ask, frozenset(json.loads(first))
        finally:
            into.close()


def result_of(
    model: PreTrainedModel, logprobs: Callable[[PreTrainedModel, np.ndarray], Tensor], ask: Ask, known: Iterable[str]
) -> str:
    """How vLLM does with a model: ``ok``, ``differs (x)``, ``not in vLLM``, or the error's first words.

    Args:
        model: Saved for vLLM.
        logprobs: Of each token but the first, by a model and its tokens.
        ask: vLLM.
        known: Architectures in its registry; it tries others by transformers' code.
    """
    rng = np.random.default_rng(8)
    prompts = [rng.integers(0, model.config.get_text_config().vocab_size - 1, n).tolist() for n in (11, 4, 9, 17, 3)]
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        said = ask({"folder": folder, "prompts": prompts})
    if "error" in said:
        words = " ".join(said["error"].replace(folder, "the model").split())
        return words[:110] if type(model).__name__ in known else "not in vLLM"
    offs = [
        np.abs(logprobs(model, np.array([*prompt, *ids])).detach().numpy()[len(prompt) - 1 :] - given).max()
        for prompt, (ids, given) in zip(prompts, said["answers"], strict=True)
    ]
    same = "ok" if max(offs) < NEAR else f"differs ({max(offs):.0e})"
    return f"{same}, by transformers' code" if said["by"].startswith("Transformers") else same


def fill(
    python: str,
    models: Mapping[str, Callable[[], PreTrainedModel]],
    logprobs: Callable[[PreTrainedModel, np.ndarray], Tensor],
    file: Path = RESULTS,
) -> None:
    """Records the result of each family as it comes, the most used first."""
    with asking(python) as (ask, known):
        for name in sorted(models, key=lambda name: (MOST_USED.index(name) if name in MOST_USED else 99, name)):
            try:
                model = models[name]()
            except Exception as error:  # of transformers, at sizes that it was not made for
                record(name, f"not built with wide heads: {error}".partition("\n")[0][:110], file)
                continue
            record(name, result_of(model, logprobs, ask, known), file)
