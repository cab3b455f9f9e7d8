"""Log-probabilities of responses to prompts that say how the episode ended."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from envsuite.core.errors import UsageError
from envsuite.prompting import Codec, TemplateRenderer
from envsuite.prompting.closing import Closing, closings
from envsuite.prompting.ordinary import added_tokens
from trainers.credit.providers import Provider
from trainers.policy.accumulation import log_probabilities
from trainers.policy.config import OptimConfig
from trainers.policy.model import Policy
from trainers.settings import ConfigError
from trainers.steps import Ragged, StepTable
from trainers.steps.columns import HINDSIGHT, LAST, SUCCESS

_LOG = logging.getLogger(__name__)

TEXT = "\n\nIn hindsight: the task was solved. The last observation was:\n{observation}"
"""Added to the last message of each prompt; ``{observation}`` is the text that the episode ended with."""

MOST_TOKENS = 256
"""Most tokens of it; what is longer loses its end."""


@dataclass(frozen=True)
class HindsightPrompts:
    """Prompts with a text about the end of the episode at the end of their last message."""

    render: TemplateRenderer
    """The policy's chat template."""
    closings: Sequence[Closing]
    """Token ids that may follow the last message of a prompt."""
    longest: int | None
    """Most tokens of prompt and response that the model computes; ``None`` where it says nothing."""
    text: str = TEXT
    most_tokens: int = MOST_TOKENS

    @classmethod
    def of(cls, render: TemplateRenderer, codec: Codec, longest: int | None) -> Self:
        """The texts for a model's prompts.

        Raises:
            ConfigError: The chat template has no place for them.
        """
        try:
            return cls(render, closings(render, codec), longest)
        except UsageError as error:
            raise ConfigError(
                f"the method puts a text into the last message of a prompt, but of the model of model.path "
                f"{error}. model.chat_template sets another template"
            ) from error

    def __call__(self, steps: StepTable) -> StepTable:
        """The steps with the text in their prompts; cut where prompt and response leave no room for all of it.

        Raises:
            UsageError: A prompt ends in another way than the chat template says.
        """
        texts: dict[str, NDArray[np.int64]] = {}
        prompts, cut = [], 0
        for row in range(len(steps)):
            observation = str(steps.extra[LAST][row])
            if observation not in texts:
                texts[observation] = self.ids(observation)
            text, prompt = texts[observation], steps.prompt[row]
            place = self._place(steps, row)
            if self.longest is not None:
                room = max(0, self.longest - len(prompt) - int(steps.response.lengths[row]))
                cut += len(text) > room
                text = text[:room]
            prompts.append(np.concatenate([prompt[:place], text, prompt[place:]]))
        if cut:
            _LOG.warning(
                "hindsight: the text was cut in %d of %d steps, whose prompts leave no room for it in the "
                "model's context of %d tokens", cut, len(steps), self.longest,
            )  # fmt: skip
        return replace(steps.without_experts(), prompt=Ragged.of(prompts, np.int32))

    def ids(self, observation: str) -> NDArray[np.int64]:
        """Returns the token ids of the text about one end; control tokens in it are ordinary text."""
        text = self.text.replace("{observation}", observation)
        tokenizer = self.render.tokenizer
        return np.array(added_tokens(tokenizer).split(tokenizer, text)[: self.most_tokens], np.int64)

    def _place(self, steps: StepTable, row: int) -> int:
        """Where the last message of a prompt ends."""
        prompt = steps.prompt[row]
        for end in self.closings:
            if prompt[-len(end) :].tolist() == list(end):
                return len(prompt) - len(end)
        raise UsageError(
            f"hindsight: the prompt of episode {steps.episode_id[row]}, step {steps.t[row]} does not end as the "
            f"model's chat template ends a message (token ids {prompt[-8:].tolist()})"
        )


@dataclass(frozen=True)
class Hindsight(Provider):
    """Scores the responses of successful episodes once an iteration, under prompts that say how the episode ended."""

    supplies: ClassVar[tuple[str, ...]] = (HINDSIGHT,)

    policy: Policy
    prompts: HindsightPrompts
    optim: OptimConfig
    """Bounds the size of a forward pass."""

    def columns(self, steps: StepTable) -> StepTable:
        """``steps`` with the token column ``hindsight_logprob``; 0 where the episode did not succeed."""
        won = np.asarray(steps.extra[SUCCESS], np.bool_)
        logprobs = np.zeros(len(steps.response.values))
        prompt_table = self.prompts(steps.take(np.flatnonzero(won)))
        logprobs[won[steps.response.row_of]] = log_probabilities(self.policy, prompt_table, self.optim)
        return steps.with_token_columns(**{HINDSIGHT: logprobs})
