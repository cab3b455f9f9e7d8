"""The scores that the official scripts of the data sets compute, transcribed to compare with; not used elsewhere."""

from __future__ import annotations

import string
from collections import Counter


def squad_normal_form(text: str) -> str:
    """Steps of SQuAD's script, one at a time: lower case, punctuation, articles, blanks."""
    lowered = text.lower()
    bare = "".join(character for character in lowered if character not in set(string.punctuation))
    words, current = [], ""
    for character in [*bare, " "]:  # a word character is what \b of re is about: alphanumeric or underscore
        if character.isalnum() or character == "_":
            current += character
        else:
            words.append(" " if current in ("a", "an", "the") else current)
            words.append(character)
            current = ""
    return " ".join("".join(words).split())


def hotpot_em(prediction: str, gold: str) -> int:
    return int(squad_normal_form(prediction) == squad_normal_form(gold))


def hotpot_f1(prediction: str, gold: str) -> float:
    mine, theirs = squad_normal_form(prediction), squad_normal_form(gold)
    for one in (mine, theirs):
        if one in ["yes", "no", "noanswer"] and mine != theirs:
            return 0.0
    common = Counter(mine.split()) & Counter(theirs.split())
    number = sum(common.values())
    if number == 0:
        return 0.0
    precision = 1.0 * number / len(mine.split())
    recall = 1.0 * number / len(theirs.split())
    return (2 * precision * recall) / (precision + recall)


def musique_f1(prediction: str, gold: str) -> float:
    mine, theirs = squad_normal_form(prediction).split(), squad_normal_form(gold).split()
    if len(theirs) == 0 or len(mine) == 0:
        return float(mine == theirs)
    number = sum((Counter(mine) & Counter(theirs)).values())
    if number == 0:
        return 0.0
    precision, recall = 1.0 * number / len(mine), 1.0 * number / len(theirs)
    return (2 * precision * recall) / (precision + recall)


def hotpot_support(prediction: list[str], gold: list[str]) -> tuple[float, float, float, float]:
    """EM, F1, precision, recall."""
    mine, theirs = set(prediction), set(gold)
    hits = misses = left = 0
    for one in mine:
        if one in theirs:
            hits += 1
        else:
            misses += 1
    for one in theirs:
        if one not in mine:
            left += 1
    precision = hits / (hits + misses) if hits + misses > 0 else 0.0
    recall = hits / (hits + left) if hits + left > 0 else 0.0
    both = 2 * precision * recall / (precision + recall) if precision + recall > 0 else 0.0
    return (1.0 if misses + left == 0 else 0.0), both, precision, recall
