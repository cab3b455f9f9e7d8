"""Chooses what plays the episodes of a run: its own prompts, or an agent at an address of this process."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from envsuite.playing.engine import BaseEngine, Sampling
from envsuite.playing.manager import RolloutManager
from envsuite.prompting import ChatTokenizer
from envsuite.remote.protocol import TOKEN_VARIABLE
from envsuite.remote.tokens import read_token
from envsuite.vector import EnvFactory
from trainers.gateway.agents import Agent, AgentManager, FunctionAgent, ServiceAgent
from trainers.gateway.command import CommandAgent
from trainers.gateway.gateway import Gateway
from trainers.gateway.sequences import Writer
from trainers.gateway.teaching import ExpertEngine
from trainers.rollout.config import AgentConfig, EnvConfig, PromptConfig, RolloutConfig
from trainers.rollout.environments import factory_of, make_manager
from trainers.settings import ConfigError, config_errors

_LOG = logging.getLogger(__name__)
_ADDRESSES: WeakKeyDictionary[ChatTokenizer, tuple[Gateway, str]] = WeakKeyDictionary()
"""Gateways of this process, by the tokenizer that they render with: training and evaluation share one address."""


def manager_of(
    rollout: RolloutConfig,
    prompt: PromptConfig,
    envs: Sequence[EnvConfig],
    slots: int,
    engine: BaseEngine[Any, Any],
    tokenizer: ChatTokenizer | None,
    examples: Sequence[str] = (),
    factory: Callable[[EnvConfig], EnvFactory] = factory_of,
    snapshots: bool = False,
    rank: int = 0,
) -> RolloutManager | AgentManager:
    """Returns what plays ``envs``: the agent of ``rollout.agent``, or the prompts of the run.

    Arguments as those of :func:`~trainers.rollout.environments.make_manager`, and the number of this process.

    Raises:
        ConfigError: The agent cannot be started, or does not go with the engine.
    """
    agent = rollout.agent
    if agent is None:
        return make_manager(rollout, prompt, envs, slots, engine, tokenizer, examples, factory, snapshots)
    assert tokenizer is not None  # an agent's requests are written in tokens, whoever answers
    if isinstance(engine, ExpertEngine) and (agent.service or not agent.environment):
        raise ConfigError(
            "rollout.engine expert answers by the state of the environment, which rollout.agent does not play; let a "
            "function or a command play it"
        )
    if tokenizer not in _ADDRESSES:
        _ADDRESSES[tokenizer] = _open_gateway(agent, prompt, tokenizer, rank)
    gateway, url = _ADDRESSES[tokenizer]
    factories = [factory(env) for env in envs]
    return AgentManager(engine, gateway, url, _agent(agent, gateway), agent, factories, slots, rollout.attempts)


def check_agent(agent: AgentConfig) -> None:
    """Refuses an agent that could not be started, before a model is loaded.

    Raises:
        ConfigError: Its function is not there, or its operator has no key.
    """
    if agent.function is not None:
        FunctionAgent(agent.function)
    if agent.service and read_token(None) is None:
        raise ConfigError(
            f"rollout.agent.run: service gives sessions for the operator's key; set {TOKEN_VARIABLE} to one"
        )


def _open_gateway(agent: AgentConfig, prompt: PromptConfig, tokenizer: ChatTokenizer, rank: int) -> tuple[Gateway, str]:
    from trainers.gateway.app import make_server  # its packages are installed where agents are wanted

    with config_errors("rollout.agent"):
        writer = Writer(tokenizer, prompt.template_arguments)
    token = read_token(None)
    models = {name: address and os.path.expandvars(address) for name, address in agent.models.items()}
    gateway = Gateway(writer, Sampling(), 0, masking=agent.masking, models=models)
    server = make_server(gateway, *agent.address(rank), token)
    threading.Thread(target=server.run, name="gateway", daemon=True).start()  # as long as the process lives
    if agent.service:
        _LOG.warning("agents ask for sessions at %s/sessions with the key of %s", server.url, TOKEN_VARIABLE)
    return gateway, server.url


def _agent(config: AgentConfig, gateway: Gateway) -> Agent:
    if config.function is not None:
        return FunctionAgent(config.function)
    if config.command:
        return CommandAgent(config)
    return ServiceAgent(gateway)
