from __future__ import annotations

import gc
import threading
import weakref

import pytest

from envsuite.core.caches import cache_by_owner, made_once


class Book:
    def __init__(self, name: str) -> None:
        self.name = name


def test_of_calls_at_the_same_time_one_makes_what_all_get():
    made, ready = [], threading.Event()

    @made_once(2)
    def make(name: str) -> Book:
        ready.wait(10)
        made.append(name)
        return Book(name)

    got: list[Book] = []
    threads = [threading.Thread(target=lambda: got.append(make("a"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    ready.set()
    for thread in threads:
        thread.join()
    assert made == ["a"] and len({id(book) for book in got}) == 1 and len(got) == 4
    make("b"), make("c")
    assert make("a") is not got[0] and made == ["a", "b", "c", "a"]


def test_what_could_not_be_made_is_tried_again():
    tries = []

    @made_once(2)
    def make(name: str) -> str:
        tries.append(name)
        if len(tries) == 1:
            raise OSError("disk")
        return name

    with pytest.raises(OSError):
        make("a")
    assert make("a") == make("a") == "a" and len(tries) == 2


def test_results_are_forgotten_with_what_they_are_of_and_bounded_for_each():
    asked = []

    @cache_by_owner(2)
    def title(book: Book, number: int) -> str:
        asked.append(number)
        return f"{book.name} {number}"

    one, other = Book("one"), Book("other")
    assert [title(one, 1), title(one, 1), title(other, 1), title(one, 2)] == ["one 1", "one 1", "other 1", "one 2"]
    assert asked == [1, 1, 2]
    title(one, 3), title(one, 1)
    assert asked == [1, 1, 2, 3, 1]
    gone = weakref.ref(one)
    del one
    gc.collect()
    assert gone() is None
