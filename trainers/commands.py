"""The trainer's commands, which ``envsuite`` finds by the entry point ``trainers``."""

from __future__ import annotations

from envsuite.core.commands import Command

_LAUNCHING = "trainers.programs.launching"
COMMANDS = {
    "quickstart": Command("train an agent on the CPU, in minutes", "trainers.programs.quickstart:main"),
    "train": Command("train an agent by reinforcement learning", "trainers.programs.train:main"),
    "launch": Command("write a run's files for SLURM or Kubernetes, or start its roles", f"{_LAUNCHING}.program:main"),
    "imitate": Command("make a base model from the play of others", "trainers.programs.imitate:main"),
    "show-prompt": Command("show a run's prompts, and the model's own answers", "trainers.programs.show_prompt:main"),
    "plan": Command("what fits into memory, and how long an iteration takes", "trainers.planning.program:main"),
    "diagnose": Command("what credit assignment has to deal with in an environment", "trainers.programs.diagnose:main"),
    "pool": Command("look into what agents did, judge, export and delete it", "trainers.programs.pool:main"),
    "calibrate": Command("the layer and radius by which BiPACE sees states best", "trainers.programs.calibrate:main"),
    "papers list": Command("list the runs of papers' tables", "trainers.programs.papers:list_runs"),
    "papers show": Command("print the settings of such a run as a file", "trainers.programs.papers:show_run"),
    "report": Command("pages that show, compare or follow runs", "trainers.programs.report:main"),
    "eval model": Command("measure a model or a checkpoint of a run", "trainers.programs.evaluate:main"),
    "export model": Command("write a run's model for transformers and vLLM", "trainers.programs.export_model:main"),
    "export episodes": Command("write episodes of a run as demonstrations", "trainers.programs.export_episodes:main"),
}
