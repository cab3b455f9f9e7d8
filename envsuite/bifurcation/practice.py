"""The teacher to imitate on Bifurcation, and the words that it takes."""

from __future__ import annotations

from envsuite.bifurcation.env import ARRIVED, LOST, Bifurcation
from envsuite.bifurcation.expert import BifurcationWalker
from envsuite.bifurcation.world import COMMON, DOORS, LETTERS, PARTS, vocabulary
from envsuite.core.practice import Practice
from envsuite.prompting.phrases import phrases


def practice() -> Practice:
    """Returns teacher and vocabulary."""
    return Practice(BifurcationWalker, texts)


def texts() -> list[str]:
    """Returns the texts of Bifurcation, with the words of all maps."""
    env = Bifurcation(split="train")
    words = " ".join((*vocabulary(), *COMMON, *LETTERS, *PARTS, *DOORS))
    sentences = ["Lost. Dead end. Place 1: a, b.", ARRIVED, LOST, env.goal("train-0"), "take", "Invalid action"]
    return [words, *sentences, *phrases(env.tools)]
