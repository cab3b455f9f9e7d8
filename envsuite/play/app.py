"""The terminal in which a person plays: Textual draws it, :class:`~envsuite.play.session.PlaySession` plays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar, TypeVar

from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen, Screen
from textual.widgets import Input, OptionList, Static, TextArea

from envsuite.core.errors import EnvsuiteError, WorkerLost
from envsuite.core.escaping import escape_controls, escape_lines
from envsuite.core.tools import Action, UnparsedAction
from envsuite.play.lines import completions, read_action, write_action
from envsuite.play.prompt import Prompt
from envsuite.play.session import PlaySession

T = TypeVar("T")
KEYS = {
    "f1": "help", "f2": "hint", "f3": "undo", "f4": "restart", "f5": "previous", "f6": "next", "f7": "task",
    "f8": "save", "f9": "random",
}  # fmt: skip
"""Key -> command to the program."""
FOOTER = "F1 Help F2 Hint F3 Undo F4 Restart F5 Prev F6 Next F7 Tasks F8 Save ^Q Quit"
SHOWN = 500
"""Most tasks in the list to choose from."""
WORDS = (":hint", ":undo", ":restart", ":next", ":previous", ":random", ":task", ":type", ":save", ":help", ":quit")
"""Commands to the program, which are no actions."""
HELP = """\
Enter         takes the action that is typed
Tab           completes it; again: the next completion
Up, Down      lines typed before
Alt+Enter     a new line: for code, or for a further call of the step
PageUp/Down   scroll the episode; Ctrl+T scrolls the task
F2 :hint      the expert's next action
F3 :undo      takes the last step back
F4 :restart   the task from its beginning
F5 :previous  F6 :next   the tasks of the split in order
F7 :task ID   another task; without ID a list to choose from
F8 :save FILE adds the episode to a file of demonstrations
F9 :random    a random task
:type TYPE    only tasks of a type; without TYPE all of them
Ctrl+Q :quit  ends

An action is TOOL ARGUMENT, TOOL NAME=VALUE … or TOOL {"NAME": VALUE}.
Anything else goes to the environment, too, which says what is wrong
with it; that counts a step, as for an agent."""


class Help(ModalScreen[None]):
    """The keys and commands; any key goes back."""

    def compose(self) -> ComposeResult:
        """Makes the text."""
        yield Static(Content(HELP), id="help")

    def on_key(self, event: events.Key) -> None:
        """Goes back."""
        event.stop()
        self.dismiss()


class Chooser(ModalScreen[str | None]):
    """A list of tasks, narrowed down by words of their id or type."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "Back")]

    def __init__(self, session: PlaySession) -> None:
        super().__init__()
        self.session = session

    def compose(self) -> ComposeResult:
        """Makes the widgets."""
        yield Input(placeholder="words of a task's id or type; Enter begins the marked one, Esc goes back", id="words")
        yield OptionList(id="tasks", markup=False)

    def on_mount(self) -> None:
        """Shows all tasks."""
        self._narrow("")

    def on_input_changed(self, event: Input.Changed) -> None:
        """Shows the tasks that have all words."""
        self._narrow(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Begins the marked task."""
        self.query_one(OptionList).action_select()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Begins a task."""
        self.dismiss(self._choices[event.option_index])

    def on_key(self, event: events.Key) -> None:
        """Moves the mark while words are typed."""
        options = self.query_one(OptionList)
        move = {"up": options.action_cursor_up, "down": options.action_cursor_down,
                "pageup": options.action_page_up, "pagedown": options.action_page_down}.get(event.key)  # fmt: skip
        if move is not None and not options.has_focus:
            move()  # type: ignore[no-untyped-call]
            event.stop()

    def _narrow(self, text: str) -> None:
        tasks, types, words = self.session.tasks, self.session.env.tasks.types, text.lower().split()
        matches = [task for task in tasks if all(word in f"{task} {types[task]}".lower() for word in words)]
        self._choices = matches[:SHOWN]
        options = self.query_one(OptionList)
        options.clear_options()
        width = max((len(types[task]) for task in self._choices), default=0)
        options.add_options([escape_controls(f"{types[task]:{width}}  {task}") for task in self._choices])
        options.border_title = f"{len(matches)} of {len(tasks)} tasks of {self.session.split}"
        options.highlighted = 0 if self._choices else None


class Play(App[None]):
    """Shows a session's episode, and takes the person's actions.

    Args:
        session: Its first task is begun.
        run: Runs the environment's calls, all in one thread.
        light: Whether the terminal is light.
    """

    CSS = """
    Screen { layers: base; }
    #status { height: 1; text-style: reverse; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; }
    #task { height: auto; max-height: 40%; padding: 0 1; border-bottom: solid $primary; }
    #episode { height: 1fr; padding: 0 1; }
    #choices { height: auto; max-height: 2; padding: 0 1; color: $accent; }
    #message { height: auto; max-height: 3; padding: 0 1; color: $warning; text-style: bold; }
    #prompt { height: auto; max-height: 8; border: none; border-top: solid $primary; padding: 0 1; }
    #keys { height: 1; padding: 0 1; color: $primary; }
    Chooser, Help { align: center middle; }
    #help { width: auto; max-width: 100%; height: auto; border: solid $primary; padding: 0 1; }
    #words { width: 90%; border: solid $primary; }
    #tasks { width: 90%; height: 70%; border: solid $primary; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(key, f"say(':{word}')", show=False, priority=True) for key, word in KEYS.items()),
        Binding("pageup", "scroll(-1)", show=False, priority=True),
        Binding("pagedown", "scroll(1)", show=False, priority=True),
        Binding("ctrl+t", "scroll_task", show=False, priority=True),
        Binding("ctrl+q", "quit", show=False, priority=True),
    ]

    def __init__(self, session: PlaySession, run: ThreadPoolExecutor, light: bool = False) -> None:
        super().__init__()
        self.theme = "ansi-light" if light else "ansi-dark"  # the terminal's own colours
        self.session = session
        self.message = ""
        self._instruction = ""
        self._calls = run
        self._busy = asyncio.Lock()

    @property
    def _base(self) -> Screen[object]:
        """The screen of the episode, below the help or a list of tasks."""
        return self.screen_stack[0]

    def compose(self) -> ComposeResult:
        """Makes the widgets."""
        yield Static(id="status")
        with VerticalScroll(id="task", can_focus=False):
            yield Static(id="instruction")
        with VerticalScroll(id="episode", can_focus=False):
            yield Static(id="past")
            yield Static(id="now")
        yield Static(id="message")
        yield Static(id="choices")
        yield Prompt(self.session.profile)
        yield Static(Content(FOOTER), id="keys")

    def on_mount(self) -> None:
        """Shows the first episode."""
        self.title = self.session.env_id
        prompt = self._base.query_one(Prompt)
        prompt.find = self._completions
        prompt.focus()
        self.message = self.session.profile.about
        self._show()

    # -- what is typed ---------------------------------------------------------------------------------------------

    def action_say(self, line: str) -> None:
        """Does what a key stands for; over the help or a list of tasks it goes back."""
        if isinstance(self.screen, ModalScreen):
            self.screen.dismiss()
        else:
            self.post_message(Prompt.Submitted(line))

    def action_scroll(self, by: int) -> None:
        """Scrolls the episode by a page."""
        if isinstance(self.screen, Chooser):
            options = self.screen.query_one(OptionList)
            (options.action_page_down if by > 0 else options.action_page_up)()  # type: ignore[no-untyped-call]
            return
        episode = self._base.query_one("#episode", VerticalScroll)
        (episode.scroll_page_down if by > 0 else episode.scroll_page_up)(animate=False)

    def action_scroll_task(self) -> None:
        """Scrolls the task by a page; from its end to its beginning."""
        task = self._base.query_one("#task", VerticalScroll)
        if task.scroll_y >= task.max_scroll_y:
            task.scroll_home(animate=False)
        else:
            task.scroll_page_down(animate=False)

    def on_text_area_changed(self, event: TextArea.Changed) -> None:
        """Shows what could be typed next."""
        self._show_choices()

    async def on_prompt_submitted(self, event: Prompt.Submitted) -> None:
        """Takes a step, or does what a command of the program says."""
        if not event.line.strip():
            return
        async with self._busy:
            self.message = ""
            try:
                if event.line.startswith(":"):
                    await self._command(*event.line[1:].strip().partition(" ")[::2])
                else:
                    await self._act(event.line)
            except WorkerLost as error:
                self.message = f"The environment is lost: {error} The episode is kept; your next action tries again."
            except (EnvsuiteError, OSError) as error:
                self.message = str(error)
            self._show()

    async def _act(self, line: str) -> None:
        session = self.session
        env, commands = session.env, session.observation["commands"]
        action = read_action(line, env.offered, session.profile, commands, env.max_calls)
        count = len(session.saved)
        await self._run_call(lambda: session.act(action))
        if len(session.saved) > count:
            self.message = f"Saved to {session.save_path}."

    async def _command(self, word: str, argument: str) -> None:
        """Does what a line says that begins with a colon."""
        session, argument = self.session, argument.strip()
        if word == "hint":
            text = self._action_text(action := await self._run_call(session.hint))
            self.message = "The expert: " + text.replace("\n", "; ")
            self._base.query_one(Prompt).offer(text if action else "")
        elif word == "undo":
            await self._run_call(session.undo)
        elif word == "restart":
            await self._run_call(session.start)
        elif word in ("next", "previous"):
            await self._run_call(lambda: session.move(1 if word == "next" else -1))
        elif word == "random":
            await self._run_call(session.random)
        elif word == "task" and argument:
            await self._run_call(lambda: session.start(argument))
        elif word == "task":
            self.push_screen(Chooser(session), self._choose_task)
        elif word == "type":
            session.choose_type(argument or None)
            await self._run_call(lambda: session.start(session.tasks[0]))
        elif word == "save":
            self._save(Path(argument) if argument else None)
        elif word == "help":
            self.push_screen(Help())
        elif word == "quit":
            self.exit()
        else:
            self.message = f"Unknown command :{word}; known: {' '.join(WORDS)}"

    def _save(self, path: Path | None) -> None:
        session = self.session
        path = path or session.save_path or Path(f"{session.env_id}.jsonl")
        count = session.save(path)
        warning = "" if session.info["success"] else " It is not solved, and whoever imitates leaves it out."
        self.message = f"Saved to {path}, which has {count} demonstrations.{warning}"

    def _choose_task(self, task_id: str | None) -> None:
        if task_id is not None:
            self.post_message(Prompt.Submitted(f":task {task_id}"))

    async def _run_call(self, call: Callable[[], T]) -> T:
        """Runs a call of the session, which may take a while, in the environment's thread."""
        self._base.query_one("#status", Static).update(Content("… working"))
        return await asyncio.get_running_loop().run_in_executor(self._calls, call)

    # -- what is shown ---------------------------------------------------------------------------------------------

    def _completions(self, text: str) -> list[str]:
        if text.startswith(":"):
            return [word for word in WORDS if word.startswith(text) and word != text]
        session = self.session
        return completions(text, session.env.offered, session.profile, session.observation["commands"])

    def _action_text(self, action: Action) -> str:
        if isinstance(action, UnparsedAction):
            return "(no action)"
        return write_action(action, self.session.env.offered, self.session.profile)

    def _show(self) -> None:
        self._base.query_one("#status", Static).update(self._status())
        new = self._instruction != self.session.first["task"]
        self._instruction = self.session.first["task"]
        self._base.query_one("#instruction", Static).update(self._text(self._instruction))
        before, now = self._history()
        self._base.query_one("#past", Static).update(before)
        self._base.query_one("#past").display = bool(before.plain)
        self._base.query_one("#now", Static).update(now)
        self._base.query_one("#message", Static).update(Content(escape_controls(self.message)))
        self._base.query_one("#message").display = bool(self.message)
        self._show_choices()
        self.call_after_refresh(self._scroll_to_end, new)

    def _scroll_to_end(self, new: bool) -> None:
        """Scrolls to the last step, and to the end of a new task, where tasks name their goal."""
        episode = self._base.query_one("#episode", VerticalScroll)
        episode.scroll_to_widget(self._base.query_one("#now"), top=True, animate=False)  # its beginning, if it is long
        if new:
            self._base.query_one("#task", VerticalScroll).scroll_end(animate=False)

    def _show_choices(self) -> None:
        text = self._base.query_one(Prompt).text
        lines = [] if self.session.over and not text else self._completions(text)
        room = 2 * max(20, self.size.width - 2) - 12
        parts, length = [], 0
        for line in lines:
            length += len(line) + 3
            if length > room:
                parts.append(f"… ({len(lines)})")
                break
            parts.append(line)
        choices = self._base.query_one("#choices", Static)
        choices.update(Content(escape_controls(" | ".join(parts))))
        choices.display = bool(parts)

    def _status(self) -> Content:
        session, info = self.session, self.session.info
        limit = f" of {session.horizon}" if session.horizon is not None else ""
        end = ""
        if session.lost is not None:
            end = "LOST"
        elif session.over:
            end = "SOLVED" if info["success"] else "ENDED, not solved" if session.env.done else "NO STEPS LEFT"
        parts = [
            session.env_id, end, f"step {len(session.steps)}{limit}", f"reward {session.reward:g}",
            f"score {info['score']:.2f}", session.task_id, info["split"], info["task_type"],
        ]  # fmt: skip
        return Content(escape_controls("  ".join(part for part in parts if part)))

    def _history(self) -> tuple[Content, Content]:
        """Returns what was before the last step, and the last step."""
        blocks = [[self._text(self.session.first["text"])]]
        for step in self.session.steps:
            command = escape_lines(f"> {self._action_text(step.action)}")
            block = [Content.styled(command, "bold $accent" if step.valid else "bold $error")]
            block.append(self._text(step.observation["text"]))
            if step.reward:
                block.append(Content.styled(f"reward {step.reward:g}", "bold $success"))
            blocks.append(block)
        if metrics := self.session.info["metrics"]:
            text = "  ".join(f"{name} {value:g}" for name, value in metrics.items())
            blocks[-1].append(Content.styled(escape_controls(text), "dim"))
        if self.session.over:
            success = self.session.info["success"]
            verdict = "Solved. F6 goes to the next task." if success else "The episode is over. F3 takes a step back."
            blocks[-1].append(Content.styled(verdict, "bold $success" if success else "bold $warning"))
        contents = [Content("\n").join(part for part in block if part.plain) for block in blocks]
        return Content("\n").join(contents[:-1]), contents[-1]

    def _text(self, text: str) -> Content:
        """Returns a text of the environment, its boards with larger cells."""
        profile = self.session.profile
        if profile.breaks:
            text = text.replace(profile.breaks, "\n")
        lines = []
        for line in text.split("\n"):
            if line.strip() and profile.cells and all(symbol in profile.cells for symbol in line):
                lines.append(Content.assemble(*(profile.cells[symbol] for symbol in line)))
            else:
                lines.append(Content(escape_controls(line)))
        return Content("\n").join(lines)
