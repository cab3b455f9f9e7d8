"""Draws a picture for every product, so that browsers need not contact the servers of the official ones."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from html import escape

from envsuite.webshop.products import Product

_HUES = {"beauty": 325, "electronics": 215, "fashion": 265, "garden": 140, "grocery": 28}
"""Hue of a department, in degrees."""
_SPREAD = 36
"""Range of the hue within a department, in degrees."""
_SIGNS = {
    "beauty": "M104 92h32v22h-32zM96 114h48v66a10 10 0 0 1-10 10h-28a10 10 0 0 1-10-10zM110 92V72l20-10v30M96 140h48",
    "electronics": "M60 72h120a8 8 0 0 1 8 8v74a8 8 0 0 1-8 8H60a8 8 0 0 1-8-8V80a8 8 0 0 1 8-8zM120 162v24M90 188h60",
    "fashion": "M96 62l-46 28 16 30 18-8v78h72v-78l18 8 16-30-46-28c-4 14-13 20-24 20s-20-6-24-20z",
    "garden": "M84 62h72l22 62H62zM120 124v62M88 190h64M146 124v22",
    "grocery": "M70 92h100l-10 96H80zM92 92c0-38 56-38 56 0M100 128l8 32M140 128l-8 32M120 128v32",
}
_PARCEL = "M60 92l60-28 60 28v68l-60 28-60-28zM60 92l60 28 60-28M120 120v68M90 78l60 28"
"""Symbol of any other department."""


def picture(product: Product) -> str:
    """Returns a constant SVG of 240 by 240: the department's colour and symbol, and the initials of the title."""
    chance = zlib.crc32(product.asin.encode())
    hue = (_HUES.get(product.category, 190) + chance % _SPREAD - _SPREAD // 2) % 360
    x, y, size = 20 + (chance >> 8) % 200, 10 + (chance >> 16) % 60, 60 + (chance >> 22) % 50
    initials = "".join(word[0] for word in product.title.split() if word[0].isalnum())[:2].upper()
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 240 240" width="240" height="240">'
        f'<linearGradient id="sky" x2="1" y2="1"><stop stop-color="hsl({hue},58%,88%)"/>'
        f'<stop offset="1" stop-color="hsl({(hue + 24) % 360},48%,74%)"/></linearGradient>'
        '<rect width="240" height="240" fill="url(#sky)"/>'
        f'<circle cx="{x}" cy="{y}" r="{size}" fill="hsl({hue},70%,96%)" opacity=".5"/>'
        f'<path d="{_SIGNS.get(product.category, _PARCEL)}" fill="hsl({hue},60%,97%)" fill-opacity=".75" '
        f'stroke="hsl({hue},42%,32%)" stroke-width="6" stroke-linejoin="round" stroke-linecap="round"/>'
        f'<text x="222" y="226" text-anchor="end" font-family="Georgia,serif" font-size="30" font-weight="bold" '
        f'fill="hsl({hue},42%,32%)">{escape(initials)}</text></svg>'
    )


def remote(product: Product, chosen: Iterable[str]) -> str | None:
    """Returns the address of the picture of the last ``chosen`` value with one, else the product's.

    Returns ``None`` unless it is an https address. ``chosen`` are values of options, in the order of the choice.
    """
    address = product.image
    for value in chosen:
        address = product.option_images.get(value) or address
    return address if address.startswith("https://") else None
