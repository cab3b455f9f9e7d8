"""Seven papers with citations and a query for each split."""

from __future__ import annotations

from envsuite.retrieval.documents import Document

GOLD = ("g1", "g2", "g3", "g4")
DOCUMENTS = (
    Document("g1", "Alpha beta", "Words on alpha and beta.", 20100101, ("old",)),
    Document("g2", "Alpha", "More on alpha.", 20110101, ("g1", "old")),
    Document("g3", "Gamma", "Nothing of the query.", 20120101, ("g1", "g2")),
    Document("g4", "Delta beta", "About delta.", 20130101, ("g3",)),
    Document("old", "Beta", "Only beta here.", 20000101),
    Document("side", "Alpha omega", "An alpha that nobody asked for.", 20140101, ("g1",)),
    Document("late", "Alpha beta, newer", "Alpha and beta.", 20200101, ("g1", "g2", "side")),
)
TASKS = (
    {"id": "q-train", "text": "Alpha beta", "gold": [*GOLD], "date": 20150101, "kind": "pair", "split": "train"},
    {"id": "q-test", "text": "alpha omega", "gold": ["side"], "date": 0, "kind": "single", "split": "test"},
)
