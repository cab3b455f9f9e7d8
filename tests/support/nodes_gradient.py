"""Under a launcher on several nodes: gradient and weights of cases of the sharded policy, by name, in a file."""

from __future__ import annotations

import sys
from pathlib import Path

from safetensors.torch import save_file
from sharding_cases import CASES, computed
from torch import Tensor

from trainers.processes.distributed import make_accelerator, run_guarded


def main() -> int:
    accelerator = make_accelerator()
    found = dict[str, Tensor]()
    for name in sys.argv[2:]:
        result = computed(accelerator, CASES[name])
        found |= {f"{name}: gradient": result.gradient, f"{name}: weights": result.weights}
    if accelerator.is_main_process:
        save_file(found, Path(sys.argv[1]))
    return 0


if __name__ == "__main__":
    sys.exit(run_guarded(main))
