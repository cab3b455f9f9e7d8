"""AdamW, with its moments in float32 or in 8 bit."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from envsuite.core.errors import MissingExtra
from trainers.policy.config import OptimConfig


def make_optimizer(parameters: Iterable[nn.Parameter], config: OptimConfig) -> torch.optim.Optimizer:
    """AdamW over the parameters that are trained.

    Args:
        parameters: Frozen ones are left out.
        config: Learning rate, moments and their format.

    Raises:
        MissingExtra: The moments are to be held in 8 bit, and torchao is not installed.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if config.state == "float32":
        return torch.optim.AdamW(trained, lr=config.lr, betas=config.betas, weight_decay=config.weight_decay)
    try:
        from torchao.optim import AdamW8bit
    except ImportError as error:
        raise MissingExtra("optim.state: 8bit needs torchao: pip install 'envsuite[8bit]'") from error
    made: torch.optim.Optimizer = AdamW8bit(trained, lr=config.lr, betas=config.betas, weight_decay=config.weight_decay)
    return made
