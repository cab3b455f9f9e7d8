"""From an environment to a gradient, in one file: python examples/one_file.py [ITERATIONS [TASKS [SEED]]]

A model of one million parameters learns to craft. Each iteration plays a few tasks several times, asks which steps
led to more than others did from the same state (GiGPO), and makes those likelier. Read from top to bottom; every name
that is imported is a part of the library that docs/architecture.md describes. Left out: several processes, evaluation
on held-out tasks, checkpoints, metrics, replay. `accelerate launch -m trainers.train` has them.
"""

import sys

import numpy as np
import torch

from envsuite.playing.dialog import TokenDialogs
from envsuite.playing.engine import Sampling
from envsuite.playing.manager import EpisodePlan, RolloutManager
from envsuite.prompting import PromptSpec, make_codec, make_memory
from envsuite.vector import EnvFactory, make_vector
from trainers.credit.estimators.comparison import CENTRED
from trainers.credit.estimators.gigpo import GiGPO
from trainers.policy.config import ModelConfig
from trainers.policy.loading import load_model, load_tokenizer
from trainers.policy.loss import Objective, token_weights
from trainers.policy.loss.policy_loss import policy_loss
from trainers.policy.model import Policy, stop_ids
from trainers.policy.packing import micro_batches
from trainers.rollout.engine import EngineSetup
from trainers.rollout.engines import make_engine
from trainers.steps import StepTable

ITERATIONS, TASKS, SEED = (int(word) for word in (*sys.argv[1:], *("8", "8", "0")[len(sys.argv) - 1 :]))
GROUP = 8  # episodes of a task: what is compared with each other
MICROBATCH = 4096  # most tokens of one forward and backward pass; bounds memory, changes no result

# -- the policy: a transformers model, and the engine that samples from it ---------------------------------------------

torch.manual_seed(SEED)
settings = ModelConfig(path="models/craft-1m")
model, tokenizer = load_model(settings), load_tokenizer(settings)
policy = Policy(model, temperature=1.0)  # gives log-probabilities of the distribution that the engine samples from
optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-4)
engine = make_engine("hf", EngineSetup(model, tokenizer, settings, slots=64), {})
sampling = Sampling(temperature=1.0, max_tokens=160, stop_ids=stop_ids(model, tokenizer))

# -- the environment: many episodes at once, each at its own pace ------------------------------------------------------

make = EnvFactory("TextCraft-v0", {"source": "generated", "goals": 400, "tasks": ["depth-2"], "max_episode_steps": 20})
tasks = make.make().unwrapped.tasks.ids("train")
vector = make_vector([make], slots=64)
manager = RolloutManager(
    engine,
    vector,
    ["TextCraft-v0"],
    TokenDialogs(
        tokenizer,
        PromptSpec(
            make_codec("tags", think=False),  # <action>…</action> to a tool call, or why it is none
            make_memory("compact(1024)"),  # prompts of successive steps begin with each other's tokens
            instructions=False,
        ),
    ),
    episode_tokens=448,
)

# -- the method: a pure function of the table of steps; the loss: a pure function of tokens ----------------------------

credit = GiGPO(gamma=0.95, compare=CENTRED)
objective = Objective(aggregation="seq-mean-token-sum", average="episodes", clip_low=0.2, clip_high=0.2)

rng = np.random.default_rng(SEED)
for iteration in range(ITERATIONS):
    # 1. Roll out: GROUP episodes of each task, from the same initial state.
    first = iteration * TASKS
    drawn = rng.choice(len(tasks), TASKS, replace=False)
    plans = [
        EpisodePlan((first + group) * GROUP + member, first + group, 0, tasks[task])
        for group, task in enumerate(drawn)
        for member in range(GROUP)
    ]
    episodes = manager.run(plans, sampling, seed=SEED)
    steps = StepTable.from_episodes(episodes)  # one row per step; token ids are what the engine saw and sampled

    # 2. Credit: one number per step, spread over the tokens of its response.
    advantage = credit(steps).tokens(steps)

    # 3. Loss and gradient, some steps at a time; what they begin with alike is computed once.
    row = steps.response.row_of
    weight = token_weights(steps.response.lengths, objective, episode=steps.episode_id)
    policy.train()
    for batch in micro_batches(steps, MICROBATCH):
        now = policy(batch)

        def column(values: np.ndarray, where: np.ndarray = batch.index) -> torch.Tensor:
            return torch.from_numpy(np.ascontiguousarray(values[where]))

        _, rows = np.unique(row[batch.index], return_inverse=True)
        found = policy_loss(
            now.logprob,
            column(steps.logprob.values).float(),  # of the policy that sampled
            column(advantage).float(),
            torch.from_numpy(rows),
            column(weight).float(),
            config=objective,
        )
        found.loss.backward()  # adds up to the gradient of the whole iteration

    # 4. One step of the optimiser; the engine samples from the new weights, and drops what it kept of the old ones.
    norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    policy.eval()
    engine.sync(model.named_parameters(), version=iteration + 1)

    won = np.mean([episode.success for episode in episodes])
    print(f"iteration {iteration + 1}  success {won:6.1%}  steps {len(steps)}  tokens {len(row)}  gradient {norm:.3f}")
vector.close()
