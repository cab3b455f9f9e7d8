"""Prior probabilities of where objects are in an ALFRED house, for those who search them."""

from __future__ import annotations

from collections.abc import Mapping

_PERCENT = """
alarmclock: diningtable 56, desk 47, dresser 38, sidetable 37, shelf 15
apple: fridge 39, diningtable 29, garbagecan 27, microwave 25, sidetable 25, countertop 19, sinkbasin 13
book: bed 60, tvstand 36, desk 34, sofa 34, diningtable 30, countertop 27, dresser 23, coffeetable 16, cabinet 8,
  sidetable 7, drawer 2, shelf 1
bowl: desk 67, tvstand 35, diningtable 28, fridge 28, dresser 23, countertop 15, sidetable 15, sinkbasin 8,
  microwave 7, shelf 7, cabinet 5
box: diningtable 63, dresser 38, coffeetable 34, sofa 30, tvstand 10, sidetable 8, armchair 4, shelf 3
bread: diningtable 43, countertop 28, fridge 28, sidetable 14, microwave 2
butterknife: diningtable 49, countertop 38, sidetable 16, sinkbasin 8, drawer 3
candle: sidetable 50, toilet 50, dresser 49, diningtable 38, countertop 36, shelf 36, cart 35, coffeetable 29,
  cabinet 13, drawer 6
cd: dresser 38, desk 36, diningtable 31, sidetable 24, cabinet 14, garbagecan 14, safe 11, shelf 9, armchair 7,
  drawer 7
cellphone: bed 44, desk 34, dresser 32, coffeetable 29, sofa 24, armchair 19, countertop 17, diningtable 17, safe
  16, sidetable 12, shelf 8, drawer 5
cloth: bathtubbasin 52, cabinet 24, countertop 23, cart 21, shelf 19, drawer 10, sinkbasin 10, toilet 6
creditcard: coffeetable 40, countertop 35, tvstand 32, ottoman 31, dresser 29, desk 27, diningtable 24, sofa 23,
  sidetable 20, armchair 15, shelf 8, drawer 7
cup: fridge 35, diningtable 24, countertop 15, microwave 14, sinkbasin 14, shelf 11, cabinet 3
desklamp: sidetable 47, desk 40, dresser 31, coffeetable 21, shelf 1
dishsponge: bathtubbasin 38, toilet 38, diningtable 35, countertop 23, cart 21, sinkbasin 10, shelf 9, garbagecan 8,
  cabinet 4, drawer 4
egg: fridge 41, garbagecan 27, sinkbasin 27, microwave 21, countertop 15, diningtable 14
floorlamp: sinkbasin 72
fork: diningtable 45, countertop 34, sidetable 25, sinkbasin 16, drawer 6
glassbottle: diningtable 44, countertop 23, sinkbasin 19, shelf 14, fridge 12, garbagecan 5, cabinet 3
handtowel: handtowelholder 75, countertop 17
kettle: countertop 25, stoveburner 15, diningtable 14, sinkbasin 5, cabinet 3
keychain: safe 50, diningtable 43, dresser 38, desk 34, armchair 25, tvstand 20, coffeetable 18, sofa 18, sidetable
  17, cabinet 9, drawer 7, shelf 6
knife: diningtable 46, countertop 39, sinkbasin 5, drawer 4
ladle: diningtable 53, countertop 38, drawer 6, sinkbasin 4, cabinet 2
laptop: bed 65, diningtable 50, desk 32, sofa 28, tvstand 26, coffeetable 14, dresser 11, armchair 9, sidetable 7
lettuce: diningtable 54, fridge 32, countertop 26, sidetable 14, sinkbasin 6
mug: desk 41, sidetable 34, coffeemachine 31, fridge 29, diningtable 27, dresser 27, countertop 24, sinkbasin 16,
  microwave 14, shelf 9, cabinet 2
newspaper: diningtable 44, ottoman 36, sofa 32, coffeetable 31, armchair 15, shelf 13, sidetable 5, drawer 4
pan: stoveburner 22, countertop 21, diningtable 10, fridge 5, cabinet 1
papertowelroll: diningtable 38, sidetable 36, garbagecan 20, countertop 18, shelf 12
pen: diningtable 60, desk 50, countertop 42, dresser 41, sidetable 25, coffeetable 24, shelf 8, drawer 4, garbagecan
  4
pencil: coffeetable 49, diningtable 46, desk 40, sidetable 34, dresser 26, countertop 23, shelf 11, garbagecan 9,
  drawer 7
peppershaker: sidetable 54, diningtable 30, countertop 22, shelf 14, cabinet 5, drawer 5
pillow: bed 83, sofa 71, ottoman 18, armchair 9
plate: diningtable 36, countertop 21, coffeetable 16, fridge 14, shelf 8, sidetable 8, microwave 7, cabinet 5,
  sinkbasin 3
pot: stoveburner 33, diningtable 11, fridge 10, countertop 8
potato: sidetable 61, fridge 35, diningtable 31, countertop 25, microwave 23, sinkbasin 22, garbagecan 12
remotecontrol: desk 49, coffeetable 43, tvstand 38, dresser 37, sofa 34, armchair 20, diningtable 19, ottoman 18,
  sidetable 12, drawer 8, shelf 4
saltshaker: diningtable 41, sidetable 34, countertop 18, shelf 14, drawer 5, cabinet 4
soapbar: countertop 53, toilet 32, shelf 26, sidetable 24, cart 21, sinkbasin 21, garbagecan 11, cabinet 9,
  bathtubbasin 8, drawer 8
soapbottle: toilet 46, sidetable 42, diningtable 37, countertop 28, cart 21, garbagecan 19, shelf 15, cabinet 5
spatula: diningtable 46, countertop 33, sidetable 14, sinkbasin 8, drawer 7
spoon: diningtable 41, sidetable 34, countertop 26, sinkbasin 26, drawer 9
spraybottle: cart 49, countertop 44, sidetable 41, toilet 40, diningtable 36, dresser 36, garbagecan 20, shelf 14,
  toaster 14, cabinet 7
statue: coffeetable 50, diningtable 45, countertop 40, dresser 32, sidetable 22, tvstand 20, shelf 16
teddybear: bed 59
tissuebox: diningtable 57, cart 49, desk 49, countertop 43, dresser 41, coffeetable 34, sidetable 33, tvstand 24,
  shelf 20, toilet 16, drawer 4
toiletpaper: shelf 41, sidetable 41, toilet 41, countertop 26, cart 21, toiletpaperhanger 21, cabinet 17, garbagecan
  14, drawer 7
tomato: fridge 45, diningtable 36, sidetable 25, countertop 23, garbagecan 16, sinkbasin 11
towel: towelholder 82, countertop 4
vase: countertop 38, diningtable 36, dresser 35, tvstand 29, sidetable 22, shelf 21, coffeetable 20, cabinet 5
watch: tvstand 56, dresser 43, diningtable 38, coffeetable 25, sidetable 14, shelf 11, drawer 3
wateringcan: coffeetable 49
winebottle: diningtable 48, countertop 24, garbagecan 22, shelf 11, cabinet 4, fridge 3
*: desk 37, diningtable 36, coffeetable 30, cart 30, dresser 30, toilet 28, tvstand 27, countertop 25, sofa 24, bed
  23, sidetable 19, fridge 15, ottoman 13, towelholder 10, bathtubbasin 10, handtowelholder 9, armchair 8, sinkbasin
  8, shelf 7, microwave 5, garbagecan 5, safe 5, stoveburner 3, toiletpaperhanger 3, drawer 2, cabinet 2,
  coffeemachine 1, toaster 0,
  laundryhamper 0
"""
# Share of the receptacles of a type that held an object of the type in the initial state of the training games, where
# the scene had one at all; shrunk a little to 15 % where receptacles were few. "*" is the mean over all types.


def _read(table: str) -> dict[str, dict[str, float]]:
    probabilities = {}
    for line in table.replace("\n ", "").strip().split("\n"):
        kind, _, row = line.partition(": ")
        probabilities[kind] = {place: int(percent) / 100 for place, percent in map(str.split, row.split(", "))}
    return probabilities


PROBABILITIES: Mapping[str, Mapping[str, float]] = _read(_PERCENT)
"""Type of an object -> type of a receptacle -> probability that one such receptacle holds such an object."""
OPENABLE: Mapping[str, float] = {"cabinet": 0.8, "drawer": 0.85, "fridge": 1.0, "microwave": 1.0, "safe": 0.65}
"""Type of a receptacle -> probability that it can be opened, and so is closed in the initial state."""
RECEPTACLES = frozenset(PROBABILITIES["*"])
"""Types of receptacles."""
MIN_PROBABILITY = 0.004
"""Lower bound: no receptacle is excluded."""


def probability(item: str, receptacle: str) -> float:
    """Returns the probability that a receptacle of type ``receptacle`` holds an object of type ``item``."""
    usual = PROBABILITIES["*"].get(receptacle, 0.0)
    # No such object was seen in such a receptacle: perhaps by chance, so a quarter of the mean over all types.
    return max(PROBABILITIES[item].get(receptacle, usual / 4) if item in PROBABILITIES else usual, MIN_PROBABILITY)
