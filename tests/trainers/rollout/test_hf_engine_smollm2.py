"""A real model: SmolLM2-135M."""

from __future__ import annotations

import pytest
from tiny_models import check_plain, greedy
from transformers import AutoTokenizer

from benchmarks.engine import TOPICS
from benchmarks.smollm2 import load_model, smollm2_folder
from envsuite.core.errors import DataError
from envsuite.playing.engine import Request, Sampling
from trainers.rollout.hf_engine import HFEngine


@pytest.mark.slow
def test_smollm2_answers_as_transformers_generate_and_its_own_forward_pass_do():
    try:
        folder = smollm2_folder()
    except DataError as missing:
        pytest.skip(str(missing))
    model = load_model(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    stop = (tokenizer.eos_token_id,)
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
        )
        for text in ("What is the capital of France?", *TOPICS[:3])
    ]
    engine = HFEngine(model, max_batch=5)
    sampling = Sampling(temperature=0, max_tokens=24, stop_ids=stop)
    for prompt, done in zip(prompts * 2, engine.generate(prompts * 2, sampling), strict=True):
        assert list(done.token_ids) == greedy(model, prompt, 24, stop)
    assert (
        tokenizer.decode(engine.generate(prompts[:1], sampling)[0].token_ids[:-1]) == "The capital of France is Paris."
    )
    for turn in range(2):
        engine.submit([
            Request(i, tuple(prompt), Sampling(max_tokens=12), session=i, seed=turn)
            for i, prompt in enumerate(prompts)
        ])  # fmt: skip
        while engine.pending:
            for done in engine.poll():
                prompt = prompts[done.request_id]
                check_plain(model, prompt, done)
                prompts[done.request_id] = [*prompt, *done.token_ids, *prompts[0][:9]]
