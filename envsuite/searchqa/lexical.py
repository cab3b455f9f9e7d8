"""A baseline that searches the question's words, and answers with a name in a sentence that shares most of them."""

from __future__ import annotations

import re
from typing import Any

import gymnasium

from envsuite.core.env import Observation
from envsuite.core.players import unwrap_env
from envsuite.core.tools import Action, ToolCall
from envsuite.searchqa.tasks import ENV_ID

_QUESTION = re.compile(r"^Question: (.*)", re.MULTILINE | re.DOTALL)
_PASSAGE = re.compile(r"^\[([^\n]*?)\] (.*)$", re.MULTILINE)
_WORD = re.compile(r"\w+")
_NAME = re.compile(r"(?:[A-Z]\w+)(?:[ -](?:of |the |and |& )?[A-Z]\w+)*")
_DATE = re.compile(r"\d{1,2} [A-Z]\w+ \d{4}|[A-Z]\w+ \d{1,2}, \d{4}|\d{4}")
_NUMBER = re.compile(r"\d[\d,]*(?: km)?")
_EITHER = re.compile(r", ([^,?]+) or ([^,?]+)\?")
_CLOSED = ("is", "are", "was", "were", "do", "does", "did", "has", "have", "can")
STEPS = 2
"""Searches before the answer."""


class SearchQALexical:
    """Searches the question, then a name in the passages, and answers by rules; it uses the observation only.

    Second query: the title of the passage that shares most words with the question. Answer: of a question "…, A or B?"
    the first; "yes" where the question begins with a verb such as "is"; else, out of the sentence that shares most
    words with the question, a date after "when", a number after "how", and otherwise the first name that is not in the
    question.
    """

    def act(self, env: gymnasium.Env[Any, Action]) -> Action:
        """Returns the next action in the episode of ``env``, a SearchQA in any wrappers, here or on a server.

        Raises:
            UsageError: ``env`` is another environment, or has no running episode.
        """
        return self.answer(unwrap_env(env, ENV_ID).observation)

    def answer(self, observation: Observation) -> Action:
        """Returns the action for an observation."""
        match = _QUESTION.search(observation["task"])
        question = " ".join((match[1] if match else observation["task"]).split())[:900] or "question"
        words = set(_WORD.findall(question.lower()))
        passages = _PASSAGE.findall(observation["text"])
        queries = observation["text"].partition("Earlier queries:\n")[2].splitlines()
        if not passages and not queries:
            return (ToolCall("search", {"query": question}),)
        by_overlap = sorted(passages, key=lambda passage: -_word_overlap(words, f"{passage[0]} {passage[1]}"))
        titles = [title for title, _ in by_overlap if title.strip() and title not in queries]
        if len(queries) < STEPS and titles:
            return (ToolCall("search", {"query": titles[0]}),)
        return (ToolCall("answer", {"text": _guess(question, words, [text for _, text in by_overlap])[:500]}),)


def _word_overlap(words: set[str], text: str) -> float:
    """Returns the share of a text's words that are among ``words``."""
    text_words = set(_WORD.findall(text.lower()))
    return len(text_words & words) / (len(text_words) + 5)


def _guess(question: str, words: set[str], texts: list[str]) -> str:
    """Returns an answer by the rules of :class:`SearchQALexical`."""
    if (either := _EITHER.search(question)) is not None:
        return either[1]
    first = question.split()[0].lower()
    if first in _CLOSED:
        return "yes"
    pattern = _DATE if first in ("when", "on") or " date " in question else _NUMBER if first == "how" else _NAME
    sentences = [sentence for text in texts for sentence in re.split(r"(?<=[.!?]) ", text)]
    for sentence in sorted(sentences, key=lambda text: -_word_overlap(words, text)):
        for name in pattern.findall(sentence):
            if not set(_WORD.findall(name.lower())) <= words and name not in ("He", "She", "It", "His", "Her", "Its"):
                return str(name)
    return "unanswerable"
