"""``python -m trainers.imitate``: make a base model from the play of others.

A small causal transformer is trained from nothing, or one that others have trained goes on (``model``, all of it or a
LoRA adapter), on transcripts that a player writes in environments, tokens and chat template exactly as a rollout would
see them. What it has learnt is to read, to copy and roughly what to do; the rest is left to reinforcement learning.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from envsuite.core.errors import EnvsuiteError
from trainers.imitation.config import ImitateConfig
from trainers.imitation.training import imitate, learner, save
from trainers.imitation.worlds import practice
from trainers.settings.words import parsed

_LOG = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        config = parsed(ImitateConfig, arguments, "python -m trainers.imitate", str(__doc__))
        practice(config.env)  # whether it has a player is said before a model is loaded
        model, tokenizer = learner(config)
        imitate(config, model, tokenizer)
    except EnvsuiteError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    save(config, model, tokenizer)
    _LOG.info("model of %d parameters written to %s", sum(p.numel() for p in model.parameters()), config.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
