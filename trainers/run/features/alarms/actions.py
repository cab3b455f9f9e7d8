"""Answers the alarms of a run: pauses it, or takes it back to its best checkpoint."""

from __future__ import annotations

from trainers.processes.distributed import first_value, sharing_failures
from trainers.report.events import RunEvent
from trainers.run.assembly import Run
from trainers.run.records import write_summary
from trainers.run.saving import restore, save
from trainers.run.stopping import Paused

_GO_ON = ("updater", "sampler", "random", "counters", "alarms", "taken")
"""Parts that do not go back: iterations are counted on, and other tasks and tokens are drawn than the first time."""


def apply_alarm_actions(run: Run) -> None:
    """Does what the settings say about the alarms that were raised; every process must call this.

    Raises:
        Paused: One pauses the run; a checkpoint has been written.
    """
    alarms = first_value(run.accelerator, run.alarms.unanswered)
    if not alarms:
        return
    actions = {name: run.config.alarms.action_of(name) for name in alarms}
    back = {name: since for name, since in alarms.items() if actions[name] == "return"}
    run.alarms.unanswered = back  # where the run is paused first, it goes back once it goes on
    if pausing := [name for name in alarms if actions[name] == "pause"]:
        _pause(run, pausing)
    run.alarms.unanswered = {}
    if back:
        _return(run, [*back], min(back.values()))


def _pause(run: Run, names: list[str]) -> None:
    folder, iteration = save(run, anew=True), run.counters.iteration
    text = (
        f"paused after iteration {iteration} by the alarm {' and '.join(names)}; see what it says above, then go on "
        f"with --resume (checkpoint {folder}), where it is silent while its sign lasts, or from an earlier checkpoint "
        "under another --name"
    )
    run.tell(RunEvent("pause", iteration, text, {"alarms": ", ".join(names), "checkpoint": str(folder)}))
    write_summary(run)
    raise Paused(text)


def _return(run: Run, names: list[str], since: int) -> None:
    alarms, iteration, label = run.alarms, run.counters.iteration, " and ".join(names)
    if alarms.returns:
        run.progress.message(f"alarm {label}: the run has gone back once, and goes on as it is")
        return
    with sharing_failures(run.accelerator):
        folder = run.folder.best_checkpoint(since) if run.accelerator.is_main_process else None
    folder = first_value(run.accelerator, folder)
    if folder is None:
        run.progress.message(
            f"alarm {label}: there is no checkpoint of before iteration {since} to go back to, so the run goes on as "
            f"it is; checkpoint_every is {run.config.checkpoint_every}"
        )
        return
    states = {name: run.parts[name].state() for name in _GO_ON if name in run.parts}
    restore(run, folder)
    for name, state in states.items():
        run.parts[name].load(state)
    alarms.forget_signs()
    text = (
        f"intervention: went back to the weights of {folder.name} after iteration {iteration}, because of the alarm "
        f"{label}; tasks, seeds and learning rate go on from iteration {iteration}"
    )
    facts = {"alarms": ", ".join(names), "checkpoint": folder.name, "since": since, "returns": alarms.returns}
    run.tell(RunEvent("return", iteration, text, facts))
    save(run, anew=True)
