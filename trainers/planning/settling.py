"""Settings that a run leaves to its plan."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from trainers.policy.sharding import SYNC
from trainers.run.config import TrainConfig

if TYPE_CHECKING:
    from accelerate import Accelerator

_LOG = logging.getLogger("trainers.train")


def settle(config: TrainConfig, accelerator: Accelerator) -> TrainConfig:
    """Returns the settings of a run, with ``auto`` replaced by what the plan says; every process must call this.

    The plan takes the memory that is free now in the process that has least, and says when sharded gradients are added
    up. On a CPU, and where the model cannot be planned, nothing is recomputed, and no gradient kept whole.
    """
    model, ranks = config.model, accelerator.num_processes
    kwargs = accelerator.gradient_state.plugin_kwargs
    kwargs[SYNC] = True
    if accelerator.device.type == "cpu" or (model.gradient_checkpointing != "auto" and model.shard == "none"):
        return config
    from trainers.planning.hardware import Device, Machines  # fake tensors and their libraries, which take a second
    from trainers.planning.plan import RunPlanner
    from trainers.planning.program import shape_of
    from trainers.policy.selfcheck import FAILURES
    from trainers.processes.distributed import all_gather_object
    from trainers.processes.memory import free

    here = min(int(os.environ.get("LOCAL_WORLD_SIZE", "1")), ranks)
    least = min(all_gather_object(accelerator, free(accelerator.device)))
    where = Machines(ranks // here, here, Device("GPU", 1.0, 1.0, least, 1.0, 1.0))
    try:
        plan = RunPlanner(shape_of(model.path, None, model.sees), where).plan(config)
    except FAILURES as error:
        _LOG.warning("the run cannot be planned: nothing is recomputed in it (%s)", error)
        return config
    kwargs[SYNC] = not plan.adds_up_once
    treatment = "recomputed" if plan.config.model.gradient_checkpointing else "kept"
    _LOG.info("by the plan activations are %s%s", treatment, ", gradients kept whole" * plan.adds_up_once)
    return plan.config
