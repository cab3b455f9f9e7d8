"""Whether the processes that were launched work together."""

from __future__ import annotations

import logging
import os

from accelerate import Accelerator

from trainers.config import ConfigError

_LOG = logging.getLogger(__name__)


def check_world(accelerator: Accelerator) -> None:
    """Compare how many processes were started with how many know of each other, and say so.

    ``accelerate launch`` with some CPU settings starts processes that do not communicate, or a single one, without
    a word: each would then train alone and write the same files.

    Raises:
        ConfigError: The launcher was asked for another number of processes than work together.
    """
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    wanted = int(os.environ.get("TRAINERS_EXPECT_PROCESSES", str(launched)))
    if accelerator.num_processes not in (launched, wanted) or launched != wanted:
        raise ConfigError(
            f"{max(launched, wanted)} processes were asked for but {accelerator.num_processes} work together. "
            "On CPU, set ACCELERATE_USE_CPU=true in the environment and launch with --config_file configs/accelerate/cpu2.yaml"
        )
    _LOG.info("%d process(es) work together; this is number %d", accelerator.num_processes, accelerator.process_index)
