"""Images in prompts: marks in texts, which become token ids below 0."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from envsuite.core.env import Observation
from envsuite.core.images import Pixels, as_png
from envsuite.prompting.ordinary import added_tokens
from envsuite.prompting.rendering import ChatTokenizer

PARTS = 2**14
"""More tokens than any image takes."""
_FIRST = -2
_OPEN, _CLOSE = "\ue000", "\ue001"
_MARK = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")


class ImageFormat(Protocol):
    """How a model takes images."""

    def ids(self, pixels: Pixels) -> Sequence[int]:
        """Returns the token ids of an image in a prompt.

        They are the model's own around it, and :func:`part_id` of (0, i) where the model puts part i of the image.
        """


def part_id(image: int, part: int) -> int:
    """Returns the token id that stands for a part of an image of the prompt; it is below -1."""
    return _FIRST - image * PARTS - part


def images_of(ids: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Returns the number of the image that each token id is a part of, -1 for a token of the vocabulary."""
    return np.where(ids <= _FIRST, (_FIRST - ids.astype(np.int64)) // PARTS, -1)


def parts_of(ids: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Returns the part of its image that each token id is; 0 for a token of the vocabulary."""
    return np.where(ids <= _FIRST, (_FIRST - ids.astype(np.int64)) % PARTS, 0)


def renumber_images(ids: NDArray[np.integer[Any]], numbers: Sequence[int]) -> NDArray[np.int64]:
    """Returns the token ids with ``numbers[k]`` as the number of image k."""
    image = images_of(ids)
    new = np.asarray(numbers, np.int64)[np.maximum(image, 0)] if len(numbers) else np.zeros(len(ids), np.int64)
    return np.where(image >= 0, _FIRST - new * PARTS - parts_of(ids), ids.astype(np.int64))


class Gallery:
    """The images of one episode, and texts with marks in their places."""

    def __init__(self) -> None:
        self.images: list[Pixels] = []
        self.shows = False
        """Whether the environment shows images; else texts stay as they are."""

    def start(self, observation: Observation) -> Observation:
        """Begins an episode; returns its first observation with marks for its images."""
        self.images, self.shows = [], "images" in observation
        return self.mark_images(observation)

    def snapshot(self) -> tuple[tuple[Pixels, ...], bool]:
        """Returns the images so far, for :meth:`restore`."""
        return tuple(self.images), self.shows

    def restore(self, token: tuple[tuple[Pixels, ...], bool]) -> None:
        """Goes on where a :meth:`snapshot` was taken."""
        images, self.shows = token
        self.images = list(images)

    def mark_images(self, observation: Observation) -> Observation:
        """Adds the images of ``observation``; returns it with marks for them after its text."""
        if not self.shows:
            return observation
        marks = []
        for image in observation["images"]:
            marks.append(f"{_OPEN}{len(self.images)}{_CLOSE}")
            self.images.append(image)
        text = "\n".join(part for part in (self.plain(observation["text"]), "".join(marks)) if part)
        commands = tuple(map(self.plain, observation["commands"]))
        return Observation(task=self.plain(observation["task"]), text=text, commands=commands)

    def plain(self, text: str) -> str:
        """Returns ``text`` without characters that begin a mark: neither texts nor models place an image."""
        return text.replace(_OPEN, "\ufffd") if self.shows else text

    def name_images(self, text: str) -> str:
        """Returns ``text`` with a word for each image, for people."""
        return _MARK.sub("[image]", text) if self.shows else text

    def parts(self, text: str) -> list[dict[str, Any]] | str:
        """Returns a message's content as endpoints take it: texts, and images as PNG in addresses; or the text alone.

        Raises:
            MissingExtra: Pillow is not installed.
        """
        pieces = _MARK.split(text)
        if not self.shows or len(pieces) == 1:
            return text
        content: list[dict[str, Any]] = []
        for number, piece in enumerate(pieces):
            if number % 2:
                data = base64.b64encode(as_png(self.images[int(piece)])).decode()
                content.append({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}})
            elif piece:
                content.append({"type": "text", "text": piece})
        return content


class ImageTokenizer:
    """A tokenizer that encodes the marks of a gallery's images.

    The model's tokens around an image are control tokens, which split a text before all else; so a text is encoded in
    parts to the ids that it would have as a whole.
    """

    def __init__(self, tokenizer: ChatTokenizer, form: ImageFormat, gallery: Gallery) -> None:
        self.tokenizer = tokenizer
        self.form = form
        self.gallery = gallery
        self.chat_template = tokenizer.chat_template

    @property
    def eos_token_id(self) -> Any:
        """The tokenizer's."""
        return self.tokenizer.eos_token_id

    @property
    def added_tokens_decoder(self) -> Mapping[int, Any]:
        """The tokenizer's."""
        return self.tokenizer.added_tokens_decoder

    def encode(self, text: Any, *, add_special_tokens: bool = True, split_special_tokens: bool = False) -> list[int]:
        """Returns the token ids of ``text``; those of image k of the gallery for its mark."""
        ids: list[int] = []
        for number, piece in enumerate(_MARK.split(text) if self.gallery.shows else [text]):
            if number % 2:
                image = int(piece)
                own = np.array(self.form.ids(self.gallery.images[image]), np.int64)
                ids += renumber_images(own, [image]).tolist()
            elif piece and split_special_tokens:
                ids += added_tokens(self.tokenizer).split(self.tokenizer, piece)
            elif piece:
                ids += self.tokenizer.encode(piece, add_special_tokens=add_special_tokens)
        return ids

    def decode(self, token_ids: Any, *, skip_special_tokens: bool = False) -> Any:
        """As the tokenizer."""
        return self.tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def apply_chat_template(self, conversation: Any, tools: Any = None, **kwargs: Any) -> Any:
        """As the tokenizer."""
        return self.tokenizer.apply_chat_template(conversation, tools, **kwargs)


def readable(tokenizer: ChatTokenizer, ids: NDArray[np.integer[Any]]) -> str:
    """Returns a prompt as text, with a word for each image, for people."""
    image = images_of(ids)
    if not (image >= 0).any():
        return str(tokenizer.decode(ids.tolist()))
    runs = np.split(np.arange(len(ids)), np.flatnonzero(np.diff(image)) + 1)
    return "".join("[image]" if image[run[0]] >= 0 else str(tokenizer.decode(ids[run].tolist())) for run in runs)


def in_order(ids: Sequence[int], images: Sequence[Pixels]) -> tuple[tuple[int, ...], tuple[Pixels, ...]]:
    """Returns a prompt's token ids with its images numbered as they come, and these images."""
    array = np.asarray(ids, np.int64)
    image_of = images_of(array)
    order = list(dict.fromkeys(image_of[image_of >= 0].tolist()))
    if not order:
        return tuple(ids), ()
    numbers = np.zeros(max(order) + 1, np.int64)
    numbers[order] = np.arange(len(order))
    return tuple(renumber_images(array, numbers.tolist()).tolist()), tuple(images[number] for number in order)
