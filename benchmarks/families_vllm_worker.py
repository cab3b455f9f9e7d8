"""Loads models with vLLM, each in a process of its own: ``python families_vllm_worker.py SECONDS < FOLDERS``.

It is run by an interpreter that has vLLM, and needs nothing else. It imports vLLM once, and forks for each model. The
first line of its output has the architectures that vLLM knows; then each line of input, ``{"folder", "prompts"}``, is
answered by one: ``{"by", "answers"}`` with the class of the model and token ids and log-probabilities for each prompt,
or ``{"error"}``.
"""

from __future__ import annotations

import json
import os
import sys
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import vllm.v1.worker.cpu_worker  # noqa: F401 - imported once, before the forks
from vllm import LLM, ModelRegistry, SamplingParams
from vllm.inputs import TokensPrompt
from vllm.model_executor.models import registry


def answer(asked: dict[str, Any], out: Connection) -> None:
    """Sends what vLLM says to the prompts."""
    registry._run_in_subprocess = lambda inspect: inspect()  # where this process itself may do it
    try:
        llm = LLM(
            asked["folder"], skip_tokenizer_init=True, dtype="float32", enforce_eager=True, seed=0, max_model_len=64,
            max_num_batched_tokens=256, max_num_seqs=8, enable_chunked_prefill=False, enable_prefix_caching=False,
        )  # fmt: skip
        sampling = SamplingParams(max_tokens=7, logprobs=0, ignore_eos=True, detokenize=False)
        prompts = [TokensPrompt(prompt_token_ids=prompt) for prompt in asked["prompts"]]
        found = [output.outputs[0] for output in llm.generate(prompts, sampling, use_tqdm=False)]
        (by,) = llm.collective_rpc(lambda worker: type(worker.get_model()).__name__)
        ids = [[*one.token_ids] for one in found]
        logprobs = [[one.logprobs[k][token].logprob for k, token in enumerate(one.token_ids)] for one in found]
        out.send({"by": by, "answers": [*zip(ids, logprobs, strict=True)]})
    except Exception as error:  # of vLLM, for models that it was not made for
        out.send({"error": f"{type(error).__name__}: {error}"})


def main() -> None:
    """Answers until its input ends."""
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what vLLM prints
    lines.write(json.dumps(sorted(ModelRegistry.get_supported_archs())) + "\n")
    context, seconds = get_context("fork"), float(sys.argv[1])
    for line in sys.stdin:
        receiving, sending = context.Pipe(duplex=False)
        process = context.Process(target=answer, args=(json.loads(line), sending))
        process.start()
        sending.close()
        try:
            said = receiving.recv() if receiving.poll(seconds) else {"error": f"no answer in {seconds:.0f} s"}
        except EOFError:
            process.join()
            said = {"error": f"the process ended with status {process.exitcode}"}
        process.kill()
        process.join()
        lines.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main()
