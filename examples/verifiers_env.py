"""For verifiers: PYTHONPATH=examples vf-eval verifiers_env --env.taskset.game WebShop-v0 --model …; needs verifiers."""

import asyncio
import contextlib

import gymnasium
import verifiers.v1 as vf

from envsuite.prompting import TagsCodec  # importing anything of envsuite registers the ids

__all__ = ["EnvsuiteEnv", "EnvsuiteTaskset"]
CODEC = TagsCodec()


class EnvsuiteConfig(vf.TasksetConfig):
    game: str = "TextCraft-v0"
    split: str = "test"
    kwargs: dict = {}  # noqa: RUF012 - further arguments of gymnasium.make: source, url, …


class EnvsuiteTaskset(vf.Taskset[vf.Task, EnvsuiteConfig]):
    def load(self):
        env = gymnasium.make(self.config.game, **self.config.kwargs).unwrapped
        system = CODEC.system(env.tools, env.max_calls)
        return (vf.Task(vf.TaskData(id=task, system_prompt=system)) for task in env.tasks.ids(self.config.split))


class EnvsuiteEnv(vf.Env[vf.SingleAgentEnvConfig]):
    async def run(self, task, agents):
        with contextlib.closing(gymnasium.make(self.config.taskset.game, **self.config.taskset.kwargs)) as env:
            observation, info = env.reset(options={"task_id": task.data.id})
            said, total, over = f"{observation['task']}\n\n{observation['text']}", 0.0, False
            async with agents.agent.interaction(task) as agent:
                while not over and not (segment := await agent.turn(said)).terminated:
                    parsed = CODEC.parse(segment.last_reply, env.unwrapped.tools, env.unwrapped.max_calls)
                    observation, reward, *ends, info = await asyncio.to_thread(env.step, parsed.action or ())
                    said, total, over = parsed.error or observation["text"], total + reward, any(ends)
        agent.trace.record_reward("reward", total, 1.0)
        agent.trace.record_metrics({"success": float(info["success"]), "score": info["score"]})
