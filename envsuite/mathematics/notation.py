r"""Notations of answers: Unicode, decoration, LaTeX and Python's notation.

Nothing is evaluated: text becomes other text, or a fraction. Any text is read in time that is bounded by its length.
"""

from __future__ import annotations

import ast
import re
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

_SIGNS = str.maketrans(dict.fromkeys('\u200b\ufeff`"', "")) | {ord(sign): f" {text} " for sign, text in zip(
    "\u2212\u2013\u00d7\u00b7\u00f7\u221a\u03c0\u221e\u2264\u2265\u2260\u2208\u222a\u2229\u2205\u00b0\u00b9\u00b2\u00b3\u2074"
    "\u2075\u2076\u2077\u2078\u2079\u00bd\u00bc\u00be",
    r"- - * * / \sqrt \pi \infty \le \ge \ne \in \cup \cap \emptyset ^\circ ^1 ^2 ^3 ^4 "
    r"^5 ^6 ^7 ^8 ^9 \frac12 \frac14 \frac34".split(), strict=True,
)}  # fmt: skip
_DECORATION = (r"\\(?:underline|fbox|boxed|mathbf)\s*\{((?:[^{}]|\{[^{}]*\})*)\}", r"\1")
_REWRITTEN = [(re.compile(pattern, re.IGNORECASE), by) for pattern, by in (
    (r"\\?\$|\\[()]|\\displaystyle|\\(?:left|right)(?![a-z])|(?<!\\)\\[\[\]]", ""), (r"\\%|\s*\bper ?cent\b", "%"),
    (r",\\!\s*|\{,\}|(?<=[0-9])(?:\\,|~)(?=[0-9]{3}(?![0-9]))", ","),  # between thousands
    (r"(\\\\)|\\[,;:> !]|\\q?quad|[~\s]+", r"\1 "), (r"\\varnothing|\\\{ *\\\}", r"\\emptyset"),
    (r"\\cdot|\\times|(?<=[0-9]) ?x ?(?=10 ?\^)", "*"), (r"\\div(?![a-z])", "/"),
    _DECORATION, _DECORATION, (r"\\mathrm\{([a-z])\}", r"\1"), (r"(?<![a-z\\])(pi|sqrt)(?![a-z])", r"\\\1 "),
    (r"\\[dtc]?frac\s*(?:\{([^{}]*)\}|([0-9]))\s*(?:\{([^{}]*)\}|([0-9]))", r"\\frac{\1\2}{\3\4}"),
    (r"\\sqrt\s*(?:([0-9]+)|\(([^()]*)\))", r"\\sqrt{\1\2}"), (r"(?:\*\*|\^)\s*(-?[0-9]+)", r"^{\1}"), (r"\*\*", "^"),
    (r"(?<=[0-9]) ?\* ?10 ?\^ ?\{([+-]?[0-9]{1,3})\}(?![0-9])", r"e\1"), (r"\(([0-9.]+)\) ?(?=\^)", r"\1"),
    (r"(?<=[+\-/]) +(?=[0-9])|(?<=[0-9]) +(?=[/%_])", ""), (r"^ *([a-z]) in (?=[\[(])", r"\1 \\in "),
    (r"^(?:\\text\{)? *(?:there (?:is|are) )?no (?:real )?solutions?\}?$|^(?:\\text\{)? *none\}?$", r"\\emptyset"),
    (r"^(?:\\text\{)? *all real(?: number)?s\}?$|^\(-\\infty, *\+?\\infty\)$", r"\\mathbb{R}"),
    (r"^\\\{ *[a-z] *(?:\\in *\\mathbb\{R\} *)?(?::|\||\\mid) *(.*)\\\}$", r"\1"),  # a set's condition
    (r"^\|([a-z])\| *(<|\\leq?) *([0-9.]+)$", r"-\3 \2 \1 \2 \3"),
)]  # fmt: skip
"""Patterns of what changes no value, and what is written for it, in this order."""
_STYLED = re.compile(r"\\(?:text(?:bf|rm|it)?|mbox|mathrm|operatorname)\s*\{([^{}]*)\}")
_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|[0-9]+(?:\.[0-9]+)?|\S")
_RECURRING = re.compile(r"([0-9]*)\.([0-9]*)\\(?:overline|bar|dot)\{([0-9]+)\}")
_SHORT = re.compile(r"(?<![0-9.])([0-9]*)\.([0-9]{1,5})(?![0-9.e])")
_FRACTION = re.compile(r"\\frac\{([+-]?[0-9]+)\}\{([0-9]+)\}")
_NUMBER = re.compile(
    r"([+-]?) *(?:([0-9]+) +(?=[0-9]+/))?"
    r"([+-]?[0-9]+/[0-9]+|(?:[0-9]{1,3}(?:[, ][0-9]{3})+|[0-9]*)(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,3})?)(%?)"
)
_LONGEST_PYTHON, _MOST_NODES = 200, 100
_PYTHONIC = re.compile(r"[A-Za-z]\(|\*\*|\b(?:pi|I|oo|inf)\b|[0-9][ij]\b")
_PYTHON = re.compile(r"(?:[0-9.]+(?:e[+-]?[0-9]+)?j?(?![\w.])|[A-Za-z][A-Za-z0-9]*(?!\w)|[ +\-*/().,])+")
_NAMES = {"pi": "\\pi ", "E": "e", "I": "i", "j": "i", "inf": "\\infty ", "oo": "\\infty "}
_FORMS: dict[object, str] = {
    ast.Add: "({}+{})", ast.Sub: "({}-{})", ast.Mult: "{}*{}", ast.Pow: "({})^{{{}}}", ast.USub: "-{}", ast.UAdd: "{}",
    **dict.fromkeys((ast.Div, "Fraction", "Rational"), "\\frac{{{}}}{{{}}}"), "sqrt": "\\sqrt{{{}}}", "abs": "|{}|",
    **{name: f"\\{name}({{}})" for name in ("sin", "cos", "tan", "ln")}, "log": "\\ln({})", "exp": "e^{{{}}}",
    **dict.fromkeys(("comb", "binomial"), "\\binom{{{}}}{{{}}}"),
}  # fmt: skip
"""LaTeX of Python's operators and functions."""


def plain(text: str) -> str:
    r"""Returns an expression without what changes no value, with fractions, roots and powers written in one way."""
    text = _of_python(text.translate(_SIGNS).strip(" \t\n*'").rstrip("."))
    for pattern, by in _REWRITTEN:
        text = pattern.sub(by, text)
    text = _RECURRING.sub(_recurring, text.strip(" *").rstrip(".").strip())
    if text.count("}") > text.count("{"):
        text = text.rstrip("} ")
    return text


def strip_style(text: str) -> str:
    r"""Returns ``text`` with the words of ``\text{…}`` and the like in the open."""
    return " ".join(_STYLED.sub(r" \1", text).replace(" ^", "^").split())


def tokens(text: str) -> list[str]:
    """Returns what an expression consists of, so that blanks that mean nothing are gone."""
    return _TOKEN.findall(text)


class Number(NamedTuple):
    """A number as it was written."""

    value: Fraction
    percent: bool = False
    places: int = 0
    """Decimal places, of the value."""
    digits: int = 0
    """Significant digits of a decimal; 0 for what is exact."""

    def rounds(self, exact: Fraction) -> bool:
        """Returns whether this is a decimal of six digits or more to which ``exact`` is rounded or cut off.

        The last places of 15 digits and more are those of a computer's arithmetic, and may differ.
        """
        scale = Fraction(10) ** self.places
        near = self.value * scale in (round(exact * scale), int(exact * scale))
        return (self.digits >= 6 and near) or (self.digits >= 15 and abs(exact - self.value) <= abs(exact) / 10**12)


def number(text: str) -> Number | None:
    """Reads an integer, decimal, fraction, mixed number or percentage; ``None`` for all else."""
    if (match := _NUMBER.fullmatch(_FRACTION.sub(r" \1/\2", text).strip())) is None:
        return None
    sign, whole, figures, percent = match.groups("")
    figures = re.sub("[, ]", "", figures)
    try:
        value = (int(whole or 0) + Fraction(figures)) * (-1 if sign == "-" else 1) / (100 if percent else 1)
    except (ValueError, ZeroDivisionError):  # a point alone, or a fraction that has no value
        return None
    if figures.isdigit() or "/" in figures:
        return Number(value, bool(percent))
    _, digits, exponent = Decimal(figures).as_tuple()
    return Number(value, bool(percent), 2 * bool(percent) - int(exponent), len(digits))


def exact(text: str) -> str:
    """Returns an expression with decimals of few digits as fractions: math-verify would round before it compares."""
    return _SHORT.sub(lambda m: f"\\frac{{{int(m[1] + m[2])}}}{{{10 ** len(m[2])}}}", text)


def _recurring(match: re.Match[str]) -> str:
    """Returns a recurring decimal as a fraction."""
    value = int("".join(match.groups())) - int(match[1] + match[2] or 0)
    return f"\\frac{{{value}}}{{{10 ** len(match[2] + match[3]) - 10 ** len(match[2])}}}"


def _of_python(text: str) -> str:
    """Returns a Python expression of few nodes, all of them known, as LaTeX; any other text as it is."""
    code = re.sub(r"(?<=[0-9])i\b", "j", text.replace("^", "**"))
    if len(code) > _LONGEST_PYTHON or not _PYTHONIC.search(text) or not _PYTHON.fullmatch(code):
        return text
    try:
        tree = ast.parse(code, mode="eval")
        return text if len([*ast.walk(tree)]) > _MOST_NODES else _latex(tree.body, code)
    except (SyntaxError, LookupError):  # it is no Python, or has something that has no form here
        return text


def _latex(node: ast.expr, code: str) -> str:
    form: object
    match node:
        case ast.Constant():
            return code[node.col_offset : node.end_col_offset].replace("j", "i")
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name if len(name) == 1 and name not in _NAMES else _NAMES[name]
        case ast.UnaryOp(op=op, operand=inner):
            form, parts = type(op), [inner]
        case ast.BinOp(left=left, op=op, right=right):
            form, parts = type(op), [left, right]
        case ast.Call(func=ast.Name(id=form) | ast.Attribute(attr=form), args=parts):
            pass
        case _:
            raise KeyError(type(node))
    return _FORMS[form].format(*(_latex(part, code) for part in parts))
