"""``python -m benchmarks.gpu``: tokens/s, memory, and the time of a training step by phase, on this machine's GPUs.

Models have the shapes of Qwen2.5-1.5B and 7B and random weights, made on the device; nothing is downloaded. Each part
runs in processes of its own with a time limit: one that runs out of memory leaves the others. The parts:

    update     an optimiser step on 4 groups of 8 episodes of 12 steps, by kernel of attention
    generate   the engine hf: 16 groups of 8 prompts of 512 tokens, 128 tokens each
    step       an iteration of trainers.train: 16 groups of 8 episodes of ALFWorld (built-in games), 50 steps each
    vllm       the same with the engine vllm, in a server of each process; only where --parts names it

Random weights hardly ever end a response or act validly, so that a step is as long as it can be: each answer has its
64 tokens, each episode its 50 steps.

    python -m benchmarks.gpu                              about half an hour on one GPU
    python -m benchmarks.gpu --parts step --shapes 1.5b --ways full
    python -m benchmarks.gpu --smoke                      tiny shapes, on the CPU: to see that this runs
    python -m benchmarks.gpu --check                      ten minutes: what runs here and what does not
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu import check
from benchmarks.gpu.parts import Part, Size, run_limited
from benchmarks.gpu.report import RATES, described, markdown
from envsuite.core.errors import EnvsuiteError
from trainers.policy.kernels import check_kernel

KERNELS = ("sdpa", "flex", "flash_attention_2", "flash_attention_3")
SMOKE = Size(
    tasks=2, members=2, steps=3, response=4, prompt=12, update_groups=2, update_steps=2, generated=5,
    tokens_per_microbatch=400,
)  # fmt: skip


def planned(given: argparse.Namespace, gpus: int) -> list[Part]:
    """The parts in their order: what takes least first."""
    shapes = ["tiny"] if given.smoke else given.shapes
    common = {"device": "cpu" if given.smoke else "cuda", "size": SMOKE if given.smoke else Size(steps=given.steps)}
    spread = min(2, os.cpu_count() or 1) if given.smoke else gpus
    found = []
    for kind, shape, way in product(given.parts, shapes, given.ways):
        if kind != "update":
            found.append(Part(kind, shape, way, **common))
        else:
            found += [Part(kind, shape, way, kernel, **common) for kernel in given.attention]
        if spread > 1 and kind != "generate":
            found.append(Part(kind, shape, way, processes=spread, **common))
    return found


def measured(part: Part, folder: Path, limit: float) -> dict[str, Any]:
    """Runs a part; returns its outcome."""
    try:
        check_kernel(part.settings)
    except EnvsuiteError as error:
        return {"name": part.name, "status": "not run", "message": str(error), "part": asdict(part)}
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(part.processes)]
    several = part.processes > 1 and part.kind not in ("step", "vllm")  # a step launches its own processes
    command = [*(words if several else []), "-m", "benchmarks.gpu.parts", json.dumps(asdict(part)), str(folder)]
    environment = {**os.environ, "ENVSUITE_DATA": str(folder / "data")}
    if part.device == "cpu":
        environment |= {"ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": ""}
    began, log = time.perf_counter(), folder / f"{part.name.replace(' ', '-')}.out"
    code = run_limited(command, log, limit, environment)
    lines = log.read_text(errors="replace").splitlines()
    told = [json.loads(line) for line in lines if line.startswith('{"status"')] or [_unfinished(code, lines, limit)]
    return {"name": part.name, **told[-1], "part": asdict(part), "wall_s": time.perf_counter() - began}


def _unfinished(code: int | None, lines: Sequence[str], limit: float) -> dict[str, Any]:
    if code is None:
        return {"status": "not finished", "message": f"after {limit:.0f} s"}
    text = "\n".join(lines[-30:])
    status = "out of memory" if "OutOfMemoryError" in text or "out of memory" in text.lower() else "failed"
    return {"status": status, "message": f"exit status {code}: {text[-1500:]}"}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and write the JSON and the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder of gpu.json and gpu.md (default runs)")
    parser.add_argument("--parts", nargs="+", default=["update", "generate", "step"], help="default: all but vllm")
    parser.add_argument("--shapes", nargs="+", choices=["1.5b", "7b"], default=["1.5b", "7b"], help="default: both")
    parser.add_argument("--ways", nargs="+", choices=["full", "lora"], default=["full", "lora"], help="default: both")
    parser.add_argument("--attention", nargs="+", choices=KERNELS, default=KERNELS, help="of update (default: all)")
    parser.add_argument("--steps", type=int, default=50, help="of an episode of step (default 50)")
    parser.add_argument("--limit", type=float, default=480, help="most seconds of a part (default 480)")
    parser.add_argument(
        "--total", type=float, help="no part begins after so many seconds (default 1740, 580 with --check)"
    )
    parser.add_argument("--check", action="store_true", help="tests and short parts: a page of pass and fail")
    parser.add_argument("--smoke", action="store_true", help="tiny shapes, on the CPU")
    given = parser.parse_args(argv)
    total = given.total or (580 if given.check else 1740)
    if given.check:
        return check.main(described(given.smoke), given.out, total, given.smoke)
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not gpus and not given.smoke:
        print("error: torch finds no CUDA here; --smoke tries this on the CPU, with tiny shapes", file=sys.stderr)
        return 1
    given.out.mkdir(parents=True, exist_ok=True)
    began, results = time.perf_counter(), []
    with tempfile.TemporaryDirectory(prefix="benchmarks-gpu-", dir=given.out) as folder:
        for part in planned(given, gpus):
            left = total - (time.perf_counter() - began)
            if left <= 0:
                results.append(
                    {"name": part.name, "status": "not run", "message": "no time left", "part": asdict(part)}
                )
            else:
                results.append(measured(part, Path(folder).resolve(), min(given.limit, left)))
            said = [f"{results[-1][name]:,.1f} {unit}" for name, unit in RATES.items() if name in results[-1]]
            head = f"{part.name}: {results[-1]['status']}, {results[-1].get('wall_s', 0):.0f} s"
            print(", ".join([head, *said]), flush=True)
            # Written after each part: what is measured stays, whatever ends this program.
            body = {"machine": described(given.smoke), "results": results}
            (given.out / "gpu.json").write_text(json.dumps(body, indent=1))
            (given.out / "gpu.md").write_text(markdown(body))
    print(f"\n{(given.out / 'gpu.md').read_text()}")
    return 0 if any(result["status"] == "ok" for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
