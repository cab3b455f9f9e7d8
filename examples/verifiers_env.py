"""For verifiers: PYTHONPATH=examples vf-eval verifiers_env --env.taskset.game WebShop-v0 --model …; needs verifiers."""

import asyncio
import contextlib

import gymnasium
import verifiers.v1 as vf

from envsuite.core.tools import offered_tools  # importing anything of envsuite registers the ids
from envsuite.prompting import Answer, Chat, FullMemory, PromptSpec, TagsCodec

__all__ = ["EnvsuiteEnv", "EnvsuiteTaskset"]
CODEC = TagsCodec()


class EnvsuiteConfig(vf.TasksetConfig):
    game: str = "TextCraft-v0"
    split: str = "test"
    kwargs: dict = {}  # noqa: RUF012 - further arguments of gymnasium.make: source, url, …


class EnvsuiteTaskset(vf.Taskset[vf.Task, EnvsuiteConfig]):
    def load(self):
        env = gymnasium.make(self.config.game, **self.config.kwargs).unwrapped
        for task in env.tasks.ids(self.config.split):
            first = env.reset(options={"task_id": task})[0] if env.tools_change else {}
            system = CODEC.system(offered_tools(env.tools, first), env.max_calls)
            yield vf.Task(vf.TaskData(id=task, system_prompt=system))


class EnvsuiteEnv(vf.Env[vf.SingleAgentEnvConfig]):
    async def run(self, task, agents):
        with contextlib.closing(gymnasium.make(self.config.taskset.game, **self.config.taskset.kwargs)) as env:
            observation, info = env.reset(options={"task_id": task.data.id})
            chat = Chat(PromptSpec(CODEC, FullMemory(), commands=False), env.unwrapped.tools, env.unwrapped.max_calls)
            chat.start(observation)
            said, total, over = chat.messages()[-1]["content"], 0.0, False
            async with agents.agent.interaction(task) as agent:
                while not over and not (segment := await agent.turn(said)).terminated:
                    parsed = chat.parse(answer := Answer(segment.last_reply))
                    observation, reward, *ends, info = await asyncio.to_thread(env.step, parsed.action or ())
                    chat.add(answer, observation, parsed)
                    said, total = parsed.error or chat.messages()[-1]["content"], total + reward
                    over = any(ends)
        agent.trace.record_reward("reward", total, 1.0)
        agent.trace.record_metrics({"success": float(info["success"]), "score": info["score"]})
