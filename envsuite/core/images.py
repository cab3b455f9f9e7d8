"""Images in observations: RGB arrays here, PNG wherever they leave the process."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envsuite.core.errors import DataError, require_extra
from envsuite.core.spaces import UnboundedSpace

Pixels = NDArray[np.uint8]
"""An image: shape (rows, columns, 3), red, green and blue from 0 to 255."""
MOST_PIXELS = 2**24
"""Largest image that is read from PNG; a file of a few kilobytes may claim any size."""


class Images(UnboundedSpace[tuple[Pixels, ...]]):
    """The space of all tuples of images, of any number and size; :meth:`sample` draws small ones."""

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> tuple[Pixels, ...]:
        """Returns no, one or two small images of noise."""
        count, rows, columns = (int(self.np_random.integers(low, 3 + 6 * low)) for low in (0, 1, 1))
        return tuple(self.np_random.integers(0, 256, (count, rows, columns, 3), np.uint8))

    def contains(self, x: Any) -> bool:
        """Whether ``x`` is a tuple of images."""
        return isinstance(x, tuple) and all(map(is_image, x))


def is_image(x: Any) -> bool:
    """Whether ``x`` is an RGB array with at least one pixel."""
    return isinstance(x, np.ndarray) and x.dtype == np.uint8 and x.ndim == 3 and x.shape[2] == 3 and x.size > 0


def digest(pixels: Pixels) -> bytes:
    """Returns what tells the image from all others."""
    hasher = hashlib.blake2b(repr(pixels.shape).encode(), digest_size=16)
    hasher.update(np.ascontiguousarray(pixels).data)
    return hasher.digest()


class ImageTable:
    """Images, each once, with numbers."""

    def __init__(self) -> None:
        self.images: list[Pixels] = []
        self._numbers: dict[bytes, int] = {}

    def number(self, pixels: Pixels) -> int:
        """Returns the image's number; adds it if it is new."""
        number = self._numbers.setdefault(digest(pixels), len(self.images))
        if number == len(self.images):
            self.images.append(pixels)
        return number

    def numbers(self, images: Iterable[Pixels]) -> list[int]:
        """Returns the number of each image."""
        return [self.number(image) for image in images]

    def clear(self) -> None:
        """Forgets all."""
        self.images.clear()
        self._numbers.clear()


def as_png(pixels: Pixels) -> bytes:
    """Returns the image as PNG, without loss.

    Raises:
        MissingExtra: Pillow is not installed.
    """
    out = io.BytesIO()
    _pillow().fromarray(np.ascontiguousarray(pixels)).save(out, "PNG")
    return out.getvalue()


def from_png(data: bytes) -> Pixels:
    """Returns the image of a PNG file.

    Raises:
        DataError: ``data`` is no PNG of at most :data:`MOST_PIXELS` pixels.
        MissingExtra: Pillow is not installed.
    """
    pillow = _pillow()
    try:
        with pillow.open(io.BytesIO(data), formats=["PNG"]) as file:
            width, height = file.size
            if width * height <= MOST_PIXELS:
                return np.array(file.convert("RGB"))
        raise OSError(f"{width}x{height} pixels are more than {MOST_PIXELS}")
    except (OSError, SyntaxError, ValueError, pillow.DecompressionBombError) as error:
        raise DataError(f"{len(data)} bytes that should be an image are no PNG file that is read: {error}") from error


def _pillow() -> Any:
    with require_extra("images outside this process need Pillow", "images"):
        from PIL import Image
    return Image
