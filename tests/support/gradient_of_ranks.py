"""Under ``accelerate launch``: the gradients of the tables that the test saved, as all processes together see them."""

import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from tiny_runs import gradient_cases, model, share_of

from trainers.policy.config import OptimConfig
from trainers.policy.model import Policy
from trainers.policy.update import Updater
from trainers.processes.distributed import make_accelerator, run_guarded


def main() -> int:
    accelerator = make_accelerator()
    for name, (objective, table, advantage, budget) in gradient_cases().items():
        policy, optimizer = accelerator.prepare(Policy(m := model(sys.argv[2], 61)), torch.optim.SGD(m.parameters()))
        updater = Updater(accelerator, policy, optimizer, OptimConfig(tokens_per_microbatch=budget), objective)
        rows = share_of(name, table, accelerator.process_index, accelerator.num_processes)
        kept = np.isin(table.response.row_of, rows)
        found = updater.gradient(table.take(rows), advantage[kept])
        if accelerator.is_main_process:
            save_file(found, Path(sys.argv[1]) / f"{name}-{accelerator.num_processes}.safetensors")
    return 0


sys.exit(run_guarded(main))
