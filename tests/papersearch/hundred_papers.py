"""A hundred papers that come into one pool by a search and an expansion, and one apart; some texts are hard to show."""

from __future__ import annotations

from envsuite.retrieval.documents import Document

MARKUP = "<img src=x onerror=\"document.title='broken into'\"> & <b>bold</b>"
LONG = "abstract " * 120_000
"""More than a megabyte."""
TITLES = (
    "The survey that cites all", MARKUP, "شبكات الاقتباس وخوارزميات البحث", "論文検索のための引用グラフ", "W" * 180,
    "🫖 Кипение воды\u202e обратно", "", "$x^2$ {braces} \\undefined % comment",
)  # fmt: skip
HUB, COUNT = "hub/10.1000:1", 100
GOLD = (HUB, "p98", "p99", "apart")


def _paper(number: int) -> Document:
    title = TITLES[number] if number < len(TITLES) else f"Graph number {number}"
    text = {1: MARKUP, 2: "ملخص " * 60, 3: "", 9: LONG}.get(number, f"On citation graphs, part {number}. " * 8)
    links = tuple(f"p{other}" for other in range(number + 7, COUNT, 11))
    date = 0 if number == 8 else (2024 - number // 5) * 10_000 + 101
    return Document(f"p{number}", title, text, date, links, {"authors": [f"Author {number}", MARKUP], "venue": "Venue"})


DOCUMENTS = (
    Document(HUB, TITLES[0], "It surveys everything.", 20240601, tuple(f"p{number}" for number in range(1, COUNT))),
    *(_paper(number) for number in range(1, COUNT)),
    Document("apart", "Apart from the others", "Nobody cites it.", 20240701),
    Document("late", "The survey, newer", "It cites the survey.", 20300101, (HUB,)),
)


def _task(name: str, split: str, text: str, gold: tuple[str, ...], date: int) -> dict[str, object]:
    return {"id": name, "text": text, "gold": [*gold], "date": date, "kind": "pair", "split": split}


TASKS = (
    _task("all", "train", f"Which papers survey {MARKUP}?", GOLD, 20250101),
    _task("short", "train", "The survey", (HUB,), 20250101),
    _task("other", "test", "Graph", ("p50",), 0),
)
