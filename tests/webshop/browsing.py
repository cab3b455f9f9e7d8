"""A browser without a screen: it reads the pages of the shop, and sends their forms."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from html.parser import HTMLParser
from pathlib import Path

from flask import Flask
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from envsuite.webshop.env import WebShop
from envsuite.webshop.page.app import create_app
from envsuite.webshop.page.customers import CAPACITY, Customers

VOID = {"meta", "link", "img", "input", "br"}
TASK = "B000000001/synthetic-1"


@dataclass
class Tag:
    """An element of a page."""

    name: str
    attributes: dict[str, str]
    text: str = ""
    """The text inside, that of elements inside included."""


@dataclass
class Page(HTMLParser):
    """What a page says."""

    html: str
    tags: list[Tag] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.open: list[Tag] = []
        self.feed(self.html)
        self.close()
        assert not self.open, f"not closed: {[tag.name for tag in self.open]}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = Tag(tag, {name: value or "" for name, value in attrs})
        assert len(found.attributes) == len(attrs)
        self.tags.append(found)
        if tag not in VOID:
            self.open.append(found)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().name == tag, tag

    def handle_data(self, data: str) -> None:
        for tag in self.open:
            tag.text += data

    def all(self, name: str, /, **attributes: str) -> list[Tag]:
        """Elements of a name with these attributes, in their order."""
        wanted = attributes.items()
        return [tag for tag in self.tags if tag.name == name and wanted <= tag.attributes.items()]

    def one(self, name: str, /, **attributes: str) -> Tag:
        (found,) = self.all(name, **attributes)
        return found

    @property
    def text(self) -> str:
        """What is to be read, with single blanks."""
        return " ".join(self.one("body").text.split())

    @property
    def elements(self) -> set[str]:
        """What can be clicked."""
        return {tag.attributes["value"] for tag in self.all("button", name="element")}

    @property
    def proof(self) -> dict[str, str]:
        """The hidden fields that every form has."""
        fields = {(tag.attributes["name"], tag.attributes["value"]) for tag in self.all("input", type="hidden")}
        assert {name for name, _ in fields} == {"token", "visit"} and len(fields) == 2
        return dict(fields)


class Browser:
    """Somebody in the shop.

    Args:
        client: Sends requests.
    """

    def __init__(self, client: FlaskClient) -> None:
        self.client = client
        self.page = self.read(client.get("/"))

    def read(self, response: TestResponse) -> Page:
        assert response.status_code == 200 and response.mimetype == "text/html"
        return Page(response.get_data(as_text=True))

    def send(self, path: str, **fields: str) -> str:
        """Send a form of the page, and go where it leads; returns the part of the page that is led to."""
        response = self.client.post(path, data=self.page.proof | fields)
        assert response.status_code == 303
        found = re.fullmatch(r"/#([\w-]+)", response.headers["Location"])
        assert found is not None
        self.page = self.read(self.client.get("/"))
        assert self.page.one("body") and [tag for tag in self.page.tags if tag.attributes.get("id") == found[1]]
        return found[1]

    def search(self, query: str) -> str:
        return self.send("/search", query=query)

    def click(self, element: str) -> str:
        return self.send("/click", element=element)

    @property
    def message(self) -> str:
        return self.page.one("p", role="status").text


def client(path: Path, task: str | None = TASK, capacity: int = CAPACITY, **settings: object) -> FlaskClient:
    """Somebody new in the shop with the catalogue ``path``, without a network between."""
    return _app(path, task, capacity, tuple(settings.items())).test_client()


@lru_cache
def _app(path: Path, task: str | None, capacity: int, settings: tuple[tuple[str, object], ...]) -> Flask:
    env = WebShop(source=str(path), split="dev")
    customers = Customers(lambda: WebShop(source=str(path), split="dev"), env.tasks.ids("dev"), task, capacity)
    return create_app(env.catalogue, customers, **dict(settings))  # type: ignore[arg-type]
