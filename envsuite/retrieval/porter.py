"""Porter's stemmer, as in Lucene.

M. F. Porter, An algorithm for suffix stripping, Program 14(3), 1980, with the departures of his own later programs:
``bli`` becomes ``ble``, ``logi`` becomes ``log``, and words of one or two letters stay as they are. Letters other than
a to z are consonants; lengths count UTF-16 units, as Java's do.
"""

from __future__ import annotations

import re

# The step's endings, each with its replacement where m > 0 before it.
_STEP_2 = {
    "ational": "ate", "tional": "tion", "enci": "ence", "anci": "ance", "izer": "ize", "bli": "ble", "alli": "al",
    "entli": "ent", "eli": "e", "ousli": "ous", "ization": "ize", "ation": "ate", "ator": "ate", "alism": "al",
    "iveness": "ive", "fulness": "ful", "ousness": "ous", "aliti": "al", "iviti": "ive", "biliti": "ble", "logi": "log",
}  # fmt: skip
_STEP_3 = {"icate": "ic", "ative": "", "alize": "al", "iciti": "ic", "ical": "ic", "ful": "", "ness": ""}
# Removed where m > 1 before them; the first that matches decides, and of "ion" only the three letters are removed.
_STEP_4 = re.compile("(?:al|ance|ence|er|ic|able|ible|ant|ement|ment|ent|(?<=[st])ion|ou|ism|ate|iti|ous|ive|ize)$")
_LAST_LETTERS = "cdegilmnrstuy"
"""Last letters of the endings of all steps; words with another last letter stay as they are."""
_ENDING_2 = re.compile(f"(?:{'|'.join(_STEP_2)})$")
_ENDING_3 = re.compile(f"(?:{'|'.join(_STEP_3)})$")


def stem(word: str) -> str:
    """Returns the stem of ``word``, which must be in lower case."""
    if word.isascii() or max(word) <= "\uffff":
        return _stem(word)
    pairs = word.encode("utf-16-be", "surrogatepass")
    units = "".join(chr(pairs[i] << 8 | pairs[i + 1]) for i in range(0, len(pairs), 2))
    return _stem(units).encode("utf-16-be", "surrogatepass").decode("utf-16-be", "surrogatepass")


def _stem(word: str) -> str:
    if len(word) < 3 or word[-1] not in _LAST_LETTERS:
        return word
    word = _step_1(word)
    if word.endswith("y") and "v" in _shape(word[:-1]):
        word = word[:-1] + "i"
    word = _replace_ending(word, _ENDING_2, _STEP_2)
    word = _replace_ending(word, _ENDING_3, _STEP_3)
    ending = _STEP_4.search(word)
    if ending and _measure(word[: ending.start()]) > 1:
        word = word[: ending.start()]
    return _step_5(word)


def _step_1(word: str) -> str:
    """Handles plurals, -ed and -ing."""
    if word.endswith(("sses", "ies")):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith("ss"):
        word = word[:-1]
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    root = word[:-2] if word.endswith("ed") else word[:-3] if word.endswith("ing") else ""
    if "v" not in _shape(root):
        return word
    if root.endswith(("at", "bl", "iz")):
        return root + "e"
    if len(root) > 1 and root[-1] == root[-2] and _shape(root).endswith("c"):
        return root if root[-1] in "lsz" else root[:-1]
    return root + "e" if _measure(root) == 1 and _ends_cvc(root) else root


def _step_5(word: str) -> str:
    """Removes a final -e, and one l of a final -ll."""
    whole = _measure(word)
    if word.endswith("e") and (whole > 1 or (whole == 1 and not _ends_cvc(word[:-1]))):
        word = word[:-1]
    return word[:-1] if whole > 1 and word.endswith("ll") else word


def _replace_ending(word: str, endings: re.Pattern[str], instead: dict[str, str]) -> str:
    match = endings.search(word)
    if match is None or _measure(word[: match.start()]) == 0:
        return word
    return word[: match.start()] + instead[match.group()]


def _shape(word: str) -> str:
    """Returns ``c`` for each consonant and ``v`` for each vowel; y is a vowel after a consonant."""
    shape = ""
    for letter in word:
        shape += "v" if letter in "aeiou" or (letter == "y" and shape.endswith("c")) else "c"
    return shape


def _measure(word: str) -> int:
    """Returns Porter's m, the number of times that a consonant follows a vowel."""
    return _shape(word).count("vc")


def _ends_cvc(word: str) -> bool:
    return len(word) > 2 and word[-1] not in "wxy" and _shape(word).endswith("cvc")
