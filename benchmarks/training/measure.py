"""Measures one way on one cell in this process, and prints the figures as JSON; ``benchmarks.training`` starts it."""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel

from benchmarks.training.rows import Rows
from benchmarks.training.ways import NotPossible, Padded, Way, device


def way_of(name: str) -> Callable[[Path, Rows, int], Way]:
    """The way called ``name``; what only others need is not imported."""
    if name == "padded":
        return Padded
    if name in ("ours", "dense", "dense-layers"):
        from benchmarks.training.ours import Dense, DenseLayers, Ours

        return {"ours": Ours, "dense": Dense, "dense-layers": DenseLayers}[name]
    from benchmarks.training.others import WAYS

    return WAYS[name]


@contextmanager
def counted(model: PreTrainedModel) -> Iterator[list[int]]:
    """Yields a list that receives the number of positions of each forward pass, as the input embedding sees them."""
    passes: list[int] = []
    embedding = model.get_input_embeddings()
    handle = embedding.register_forward_hook(lambda _, given, out: passes.append(out.shape[:-1].numel()))
    try:
        yield passes
    finally:
        handle.remove()


class Memory:
    """The highest memory of a pass above what the process holds before it, bytes."""

    def __init__(self) -> None:
        if device().type == "cuda":
            torch.cuda.reset_peak_memory_stats()
            self._before = torch.cuda.memory_allocated()
            return
        Path("/proc/self/clear_refs").write_text("5")  # the highest value is counted anew
        self._before = _resident("VmRSS")

    def above(self) -> int:
        """Bytes since the object was made."""
        peak = torch.cuda.max_memory_allocated() if device().type == "cuda" else _resident("VmHWM")
        return peak - self._before


def _resident(field: str) -> int:
    text = Path("/proc/self/status").read_text()
    return 1024 * int(next(line.split()[1] for line in text.splitlines() if line.startswith(field)))


def measure(way: Way, limit: float) -> dict[str, Any]:
    """Runs ``way`` once, after a micro-batch that is not timed.

    Micro-batches beyond ``limit`` CPU seconds are left out; the one of the longest rows is measured in any case, the
    others in random order. Times and tokens are those of all, by the positions of the micro-batches that were measured.
    """
    for parameter in way.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    memory = Memory()  # before the warm-up, whose freed memory the process may keep
    way.warm()
    way.model.zero_grad(set_to_none=False)
    order = list(range(len(way.sizes) - 1))
    random.Random(0).shuffle(order)
    wall, cpu, loss, done = time.perf_counter(), time.process_time(), 0.0, 0
    with counted(way.model) as passes:
        for part in (len(way.sizes) - 1, *order):
            loss += way.run(part)
            done += way.sizes[part]
            if time.process_time() - cpu > limit:
                break
    wall, cpu, peak = time.perf_counter() - wall, time.process_time() - cpu, memory.above()
    share = done / max(sum(way.sizes), 1) or 1.0
    return {
        "seconds": wall / share, "cpu": cpu / share, "computed": round(sum(passes) / share), "measured": share,
        "peak": peak, "loss": loss if share == 1.0 else None, "threads": torch.get_num_threads(),
        "device": str(device()), "torch": torch.__version__,
    }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Prints one line of JSON: the figures, or ``reason`` why there are none."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training.measure", description=__doc__)
    parser.add_argument("way")
    parser.add_argument("--rows", type=Path, required=True, help="file of step rows")
    parser.add_argument("--model", type=Path, required=True, help="folder of model and tokenizer")
    parser.add_argument("--budget", type=int, default=4096, help="most tokens of a forward pass")
    parser.add_argument("--limit", type=float, default=float("inf"), help="CPU seconds")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--gradients", type=Path, help="file for the gradient, as safetensors")
    given = parser.parse_args(argv)
    torch.set_num_threads(given.threads)
    try:
        way = way_of(given.way)(given.model, Rows.load(given.rows), given.budget)
    except NotPossible as error:
        sys.stdout.write(json.dumps({"reason": str(error)}) + "\n")
        return 0
    found = measure(way, given.limit)
    if given.gradients:
        parameters = way.model.named_parameters()
        save_file({name: p.grad.contiguous() for name, p in parameters if p.grad is not None}, given.gradients)
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
