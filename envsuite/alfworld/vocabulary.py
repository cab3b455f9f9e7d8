"""The receptacles and objects of a home in ALFRED's terms: which receptacle takes which objects, and how often.

The numbers are those of ALFRED's rooms, rounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Counts = tuple[tuple[int, int], ...]
"""Numbers with weights."""

FOOD = frozenset("Apple Bread Egg Lettuce Potato Tomato".split())
DISHES = frozenset("Bowl Cup Mug Plate".split())
CUTLERY = frozenset("ButterKnife Fork Knife Ladle Spatula Spoon".split())
SEASONING = frozenset("PepperShaker SaltShaker".split())
BOTTLES = frozenset("Glassbottle WineBottle".split())
WASHING = frozenset("Cloth DishSponge HandTowel SoapBar".split())
SPRAYS = frozenset("SoapBottle SprayBottle".split())
TOILETRIES = WASHING | SPRAYS | {"Candle", "TissueBox", "ToiletPaper"}
POCKET = frozenset("CellPhone CreditCard KeyChain".split())
WRITING = frozenset("Pen Pencil".split())
SEATS = POCKET | frozenset("Book Box Laptop Newspaper Pillow RemoteControl".split())
_TABLE = POCKET | WRITING | frozenset("Book Box RemoteControl Statue TissueBox Vase Watch WateringCan".split())
_KITCHEN_TOP = FOOD | DISHES | CUTLERY | SEASONING | SPRAYS | frozenset("Candle DishSponge Kettle Pan Pot".split())

CONTAINS: Mapping[str, frozenset[str]] = {
    "ArmChair": SEATS | {"Cloth"},
    "BathtubBasin": WASHING,
    "Bed": frozenset("BaseballBat BasketBall Book CellPhone Laptop Pillow TennisRacket".split()),
    "Cabinet": DISHES.union(
        SEASONING, BOTTLES, TOILETRIES, "Book Box CD Kettle Ladle Newspaper Pan Plunger Pot Vase WateringCan".split()
    ),
    "Cart": TOILETRIES | {"Plunger"},
    "CoffeeMachine": frozenset({"Mug"}),
    "CoffeeTable": _TABLE | {"Bowl", "Candle", "Laptop", "Newspaper", "Plate"},
    "CounterTop": (_KITCHEN_TOP | BOTTLES | TOILETRIES | _TABLE | {"AlarmClock", "CD", "Laptop"})
    - {"Box", "Watch", "WateringCan"},
    "Desk": _TABLE | frozenset("AlarmClock BasketBall Bowl CD Cloth Laptop Mug TennisRacket".split()),
    "DiningTable": _KITCHEN_TOP | BOTTLES | _TABLE | {"AlarmClock", "BaseballBat", "CD", "Laptop", "Newspaper"},
    "Drawer": CUTLERY.union(
        SEASONING, TOILETRIES, POCKET, WRITING, "Book CD Newspaper RemoteControl Watch WateringCan".split()
    ),
    "Dresser": _TABLE
    | frozenset("AlarmClock BasketBall Bowl CD Candle Cloth Laptop Mug Newspaper".split())
    | {"SprayBottle", "TennisRacket", "ToiletPaper"},
    "Fridge": FOOD | DISHES | BOTTLES | {"Pan", "Pot"},
    "GarbageCan": FOOD | WASHING | SPRAYS | WRITING | {"CD", "Newspaper", "TissueBox", "ToiletPaper", "WineBottle"},
    "HandTowelHolder": frozenset({"HandTowel"}),
    "LaundryHamper": frozenset({"Cloth"}),
    "Microwave": (FOOD | DISHES | {"Glassbottle"}) - {"Lettuce"},
    "Ottoman": SEATS,
    "Safe": POCKET | {"CD", "Statue", "Vase"},
    "Shelf": DISHES | SEASONING | BOTTLES | TOILETRIES | _TABLE | {"AlarmClock", "CD", "Kettle", "Newspaper", "Pot"},
    "SideTable": (_KITCHEN_TOP | TOILETRIES | _TABLE | {"AlarmClock", "BaseballBat", "BasketBall", "CD", "Laptop"})
    - {"Ladle"}
    | {"Newspaper", "TennisRacket", "WineBottle"},
    "SinkBasin": (FOOD | DISHES | CUTLERY | WASHING | {"Glassbottle", "Kettle", "Pan", "Pot"}) - {"Bread"},
    "Sofa": SEATS,
    "StoveBurner": frozenset({"Kettle", "Pan", "Pot"}),
    "TVStand": frozenset({"TissueBox"}),
    "Toaster": frozenset(),
    "Toilet": TOILETRIES,
    "ToiletPaperHanger": frozenset({"ToiletPaper"}),
    "TowelHolder": frozenset({"Towel"}),
}
"""Types of objects that each kind of receptacle takes; others neither start there nor can be put there."""

COOLABLE = FOOD | DISHES | {"Pan", "Pot", "WineBottle"}
HEATABLE = (FOOD | DISHES) - {"Bowl", "Lettuce"}
CLEANABLE = ((FOOD | DISHES | CUTLERY | WASHING) - {"Bread", "HandTowel"}) | {"Kettle", "Pan", "Pot"}
SLICEABLE = FOOD
VESSELS = DISHES | {"Box", "Pan", "Pot"}
LAMP = "DeskLamp"
FIXED = frozenset(
    "Bathtub Blinds Chair Curtains DeskLamp FloorLamp HousePlant LaundryHamperLid LightSwitch Mirror Painting Poster "
    "ShowerDoor ShowerGlass Sink StoveKnob Television Window".split()
)
"""Objects that cannot be picked up; they belong to the layout of a room."""

SHUT: Mapping[str, int] = {"Cabinet": 81, "Drawer": 84, "Fridge": 100, "Microwave": 100, "Safe": 100}
"""Percentage of the receptacles of a kind that can be opened, and start closed; the others are always open."""
BESIDE: Mapping[str, tuple[str, int]] = {
    "Cabinet": ("Cabinet", 9),
    "CoffeeMachine": ("CounterTop", 20),
    "Drawer": ("Drawer", 12),
    "Dresser": ("Drawer", 30),
    "Shelf": ("Shelf", 8),
    "StoveBurner": ("StoveBurner", 40),
    "TVStand": ("Shelf", 50),
    "Toaster": ("CounterTop", 34),
}
"""Kind of receptacle that shares the location of one of that kind, and the percentage that do."""

ONE: Counts = ((1, 1),)
FEW: Counts = ((1, 60), (2, 30), (3, 10))
SOME: Counts = ((1, 38), (2, 32), (3, 28), (4, 2))
ROLLS: Counts = ((1, 3), (2, 7), (3, 2))


@dataclass(frozen=True)
class ItemSpec:
    """A type of object in a kind of room."""

    kind: str
    percent: int
    """Percentage of the rooms that have it."""
    counts: Counts
    places: Mapping[str, int]
    """Kinds of receptacles where it is found, with weights; on the floor where the room has none of them."""


@dataclass(frozen=True)
class RoomKind:
    """A kind of room."""

    name: str
    first_plan: int
    """Number of its first floor plan; there are 30."""
    receptacles: tuple[tuple[str, Counts], ...]
    things: tuple[ItemSpec, ...]


def _thing(kind: str, percent: int, counts: Counts = ONE, **places: int) -> ItemSpec:
    return ItemSpec(kind, percent, counts, places)


KITCHEN = RoomKind(
    "kitchen",
    1,
    (
        ("Cabinet", ((4, 2), (8, 2), (9, 2), (10, 3), (11, 2), (13, 4), (15, 2), (18, 2), (20, 4), (23, 2), (26, 2))),
        ("CounterTop", ((1, 5), (2, 11), (3, 8), (4, 3))),
        ("CoffeeMachine", ONE),
        ("DiningTable", ((0, 12), (1, 11), (2, 3), (3, 1))),
        ("Drawer", ((0, 1), (1, 2), (2, 1), (3, 6), (4, 4), (5, 3), (6, 3), (8, 2), (9, 1), (12, 2), (13, 1), (20, 1))),
        ("Fridge", ONE),
        ("GarbageCan", ONE),
        ("Microwave", ONE),
        ("Safe", ((0, 26), (1, 1))),
        ("Shelf", ((0, 23), (3, 4))),
        ("SideTable", ((0, 24), (1, 3))),
        ("SinkBasin", ONE),
        ("StoveBurner", ((4, 26), (6, 1))),
        ("Toaster", ONE),
    ),
    (
        _thing("Apple", 100, SOME, Fridge=7, CounterTop=7, Microwave=4, DiningTable=4, GarbageCan=4, SinkBasin=4),
        _thing("Bread", 100, FEW, CounterTop=14, DiningTable=8, Fridge=4),
        _thing("Egg", 100, SOME, Fridge=7, CounterTop=7, SinkBasin=4, GarbageCan=4, Microwave=4, DiningTable=3),
        _thing("Lettuce", 100, FEW, CounterTop=11, DiningTable=9, Fridge=6, SinkBasin=1),
        _thing("Potato", 100, SOME, CounterTop=10, Fridge=7, DiningTable=4, Microwave=4, SinkBasin=3, GarbageCan=2),
        _thing("Tomato", 100, SOME, CounterTop=10, Fridge=9, DiningTable=6, GarbageCan=3, SinkBasin=2),
        _thing("Bowl", 100, SOME, Cabinet=11, Fridge=7, CounterTop=6, DiningTable=4, Microwave=1, SinkBasin=1),
        _thing("Cup", 100, SOME, Cabinet=7, CounterTop=6, Fridge=6, DiningTable=4, SinkBasin=3, Microwave=2, Shelf=5),
        _thing("Mug", 100, SOME, CounterTop=9, Fridge=5, Cabinet=5, DiningTable=4, SinkBasin=3, Microwave=3, Shelf=5),
        _thing("Plate", 100, SOME, Cabinet=12, CounterTop=8, DiningTable=5, Fridge=3, SinkBasin=1, Microwave=1),
        _thing("ButterKnife", 98, SOME, CounterTop=15, DiningTable=9, Drawer=3, SinkBasin=2),
        _thing("Fork", 100, SOME, CounterTop=15, DiningTable=8, Drawer=6, SinkBasin=3),
        _thing("Knife", 100, SOME, CounterTop=16, DiningTable=7, Drawer=5, SinkBasin=1),
        _thing("Ladle", 37, SOME, CounterTop=5, Drawer=2, Cabinet=2, DiningTable=2),
        _thing("Spatula", 100, SOME, CounterTop=14, DiningTable=8, Drawer=6, SinkBasin=2),
        _thing("Spoon", 100, SOME, CounterTop=11, Drawer=9, DiningTable=7, SinkBasin=5),
        _thing("PepperShaker", 100, SOME, CounterTop=10, Cabinet=9, Drawer=6, DiningTable=4, Shelf=5),
        _thing("SaltShaker", 100, SOME, Cabinet=10, CounterTop=8, DiningTable=6, Drawer=6, Shelf=5),
        _thing("DishSponge", 100, SOME, CounterTop=8, Cabinet=8, DiningTable=5, Drawer=4, SinkBasin=2, GarbageCan=2),
        _thing("SoapBottle", 100, SOME, CounterTop=9, Cabinet=9, DiningTable=6, GarbageCan=4, SideTable=6),
        _thing("Kettle", 47, FEW, StoveBurner=5, CounterTop=4, Cabinet=3, DiningTable=1),
        _thing("Pan", 100, FEW, StoveBurner=11, CounterTop=5, Cabinet=2, DiningTable=1, Fridge=1),
        _thing("Pot", 100, FEW, StoveBurner=17, CounterTop=3, Fridge=1, DiningTable=1, Cabinet=1),
        _thing("Glassbottle", 28, SOME, CounterTop=3, Cabinet=3, DiningTable=2, SinkBasin=1, Fridge=1),
        _thing("WineBottle", 46, SOME, CounterTop=4, DiningTable=4, Cabinet=4, GarbageCan=2, Shelf=4),
        _thing("Vase", 17, SOME, CounterTop=2, Shelf=8, Cabinet=2),
        _thing("Statue", 17, SOME, CounterTop=3, Shelf=8),
        _thing("Book", 12, FEW, CounterTop=3, DiningTable=1, Cabinet=1, Drawer=1),
        _thing("CellPhone", 12, FEW, Drawer=4, CounterTop=3, DiningTable=1),
        _thing("CreditCard", 8, SOME, CounterTop=1, Drawer=1),
        _thing("Pen", 9, SOME, DiningTable=5, CounterTop=4, Drawer=1),
        _thing("Pencil", 11, SOME, Drawer=4, CounterTop=3, DiningTable=2),
        _thing("SprayBottle", 8, SOME, CounterTop=4, DiningTable=3, Cabinet=3, GarbageCan=1),
        _thing("Blinds", 19),
        _thing("Chair", 84, ((1, 8), (2, 4), (5, 1))),
        _thing("Curtains", 9),
        _thing("HousePlant", 36, FEW, CounterTop=4, DiningTable=1),
        _thing("LightSwitch", 100),
        _thing("Sink", 100),
        _thing("StoveKnob", 100, ((4, 1),)),
        _thing("Window", 89, FEW),
    ),
)

LIVING_ROOM = RoomKind(
    "living room",
    201,
    (
        ("ArmChair", ((1, 14), (2, 6))),
        ("Cabinet", ((0, 18), (1, 1), (8, 1))),
        ("CoffeeTable", ((0, 4), (1, 12), (2, 4))),
        ("Desk", ((0, 19), (1, 1))),
        ("DiningTable", ((0, 10), (1, 8), (2, 2))),
        ("Drawer", ((0, 5), (1, 2), (2, 1), (4, 4), (6, 2), (7, 3), (8, 1), (12, 1), (21, 1))),
        ("Dresser", ((0, 13), (1, 6), (2, 1))),
        ("GarbageCan", ONE),
        ("Ottoman", ((0, 16), (1, 4))),
        ("Safe", ((0, 19), (1, 1))),
        ("Shelf", ((0, 12), (1, 1), (2, 1), (3, 1), (6, 1), (8, 2), (13, 1), (14, 1))),
        ("SideTable", ((0, 5), (1, 6), (2, 3), (3, 6))),
        ("Sofa", ((1, 15), (2, 5))),
        ("TVStand", ((0, 11), (1, 9))),
    ),
    (
        _thing("Box", 100, FEW, DiningTable=9, Sofa=6, CoffeeTable=5, Dresser=5, SideTable=2),
        _thing(
            "CreditCard", 100, SOME, CoffeeTable=7, Sofa=4, SideTable=4, ArmChair=4, Drawer=3, DiningTable=3, Shelf=3
        ),
        _thing("KeyChain", 100, SOME, Sofa=4, Drawer=4, SideTable=4, CoffeeTable=4, DiningTable=4, ArmChair=3, Shelf=3),
        _thing("Laptop", 100, FEW, DiningTable=11, Sofa=7, CoffeeTable=5, SideTable=3, ArmChair=2),
        _thing("Pillow", 100, FEW, Sofa=40, ArmChair=7, Ottoman=2),
        _thing("RemoteControl", 100, SOME, Sofa=7, CoffeeTable=8, ArmChair=4, Dresser=8, SideTable=4, Drawer=3),
        _thing("Statue", 98, SOME, DiningTable=13, SideTable=9, CoffeeTable=8, Shelf=14, Dresser=4),
        _thing("Vase", 60, SOME, Shelf=15, DiningTable=5, CoffeeTable=2, SideTable=2, Dresser=2),
        _thing("Newspaper", 56, FEW, Sofa=5, DiningTable=4, CoffeeTable=3, SideTable=2, Shelf=3, ArmChair=2, Drawer=1),
        _thing("Watch", 51, FEW, CoffeeTable=4, SideTable=3, DiningTable=4, Drawer=2, Shelf=3, Dresser=4),
        _thing("TissueBox", 38, SOME, DiningTable=6, SideTable=4, CoffeeTable=3, Dresser=3, TVStand=1, Shelf=1),
        _thing("WateringCan", 33, ONE, CoffeeTable=1, DiningTable=1),
        _thing("Book", 33, FEW, Dresser=8, SideTable=2, CoffeeTable=2, Sofa=2, DiningTable=2, ArmChair=1),
        _thing("Plate", 27, SOME, DiningTable=8, Shelf=4, CoffeeTable=1, SideTable=1),
        _thing("CellPhone", 20, FEW, ArmChair=3, Drawer=2, Dresser=4, CoffeeTable=1, SideTable=1, Sofa=1),
        _thing("Pen", 13, FEW, SideTable=4, CoffeeTable=2, Dresser=3, DiningTable=1),
        _thing("Pencil", 13, SOME, SideTable=4, CoffeeTable=4),
        _thing("Candle", 13, SOME, SideTable=3, DiningTable=4, CoffeeTable=2, Dresser=2, Drawer=1),
        _thing("Bowl", 11, FEW, DiningTable=4, Shelf=1),
        _thing("Boots", 22),
        _thing("Chair", 76, ((1, 9), (3, 3), (4, 10), (5, 5), (6, 6))),
        _thing("Curtains", 22, FEW),
        _thing(LAMP, 27, ONE, SideTable=11, CoffeeTable=1, Dresser=1, Desk=1),
        _thing("FloorLamp", 100),
        _thing("HousePlant", 100, ONE, SideTable=6, CoffeeTable=4, DiningTable=1, TVStand=1),
        _thing("LightSwitch", 100),
        _thing("Mirror", 13),
        _thing("Painting", 100, SOME),
        _thing("Television", 100, ONE, TVStand=9, Dresser=5, CoffeeTable=1),
        _thing("Window", 91, ((1, 8), (2, 15), (3, 5), (6, 4), (7, 6))),
    ),
)

BEDROOM = RoomKind(
    "bedroom",
    301,
    (
        ("ArmChair", ((0, 20), (1, 4), (2, 2))),
        ("Bed", ((1, 23), (2, 3))),
        ("Cabinet", ((0, 22), (1, 1), (2, 1), (4, 2))),
        ("CounterTop", ((0, 25), (1, 1))),
        ("Desk", ((0, 8), (1, 16), (2, 2))),
        ("DiningTable", ((0, 23), (1, 3))),
        ("Drawer", ((0, 1), (2, 6), (3, 3), (4, 2), (5, 4), (6, 2), (8, 1), (10, 3), (11, 2), (14, 1), (16, 1))),
        ("Dresser", ((0, 13), (1, 11), (2, 2))),
        ("GarbageCan", ONE),
        ("LaundryHamper", ((0, 19), (1, 7))),
        ("Safe", ((0, 22), (1, 4))),
        ("Shelf", ((0, 9), (1, 6), (2, 3), (5, 4), (7, 2), (9, 1), (12, 1))),
        ("SideTable", ((0, 9), (1, 11), (2, 6))),
    ),
    (
        _thing("AlarmClock", 100, SOME, Desk=10, SideTable=9, Dresser=9, Shelf=6, DiningTable=9),
        _thing("Book", 100, SOME, Bed=14, Desk=6, Drawer=3, Cabinet=2, SideTable=1, Dresser=2, DiningTable=5),
        _thing("CD", 100, SOME, Drawer=7, Desk=6, Dresser=8, SideTable=5, Shelf=3, GarbageCan=2, DiningTable=7, Safe=2),
        _thing("CellPhone", 100, SOME, Bed=9, Drawer=5, Desk=7, Dresser=7, SideTable=3, Shelf=2, DiningTable=5, Safe=1),
        _thing("CreditCard", 100, SOME, Drawer=11, SideTable=7, Shelf=6, Desk=5, Dresser=8, ArmChair=4, Safe=2),
        _thing(
            "KeyChain", 100, SOME, Drawer=7, Desk=7, Dresser=8, Shelf=5, SideTable=4, DiningTable=9, ArmChair=5, Safe=3
        ),
        _thing("Laptop", 100, FEW, Bed=16, Desk=5, ArmChair=3, Dresser=1),
        _thing("Pen", 100, SOME, Desk=10, Dresser=9, SideTable=5, Drawer=3, Shelf=5, DiningTable=9, GarbageCan=1),
        _thing("Pencil", 100, SOME, Desk=8, SideTable=7, Dresser=9, Drawer=4, Shelf=5, DiningTable=9, GarbageCan=2),
        _thing("Pillow", 100, FEW, Bed=50, ArmChair=1),
        _thing("Mug", 58, FEW, Desk=6, SideTable=4, DiningTable=9, Shelf=3, Dresser=3),
        _thing("Bowl", 48, FEW, Desk=9, Shelf=6, SideTable=2, Dresser=2),
        _thing("Box", 48, ONE, Shelf=1, Desk=1),
        _thing("BaseballBat", 39),
        _thing("TennisRacket", 32),
        _thing("BasketBall", 26),
        _thing("TeddyBear", 20),
        _thing("RemoteControl", 13, SOME, Drawer=2, Desk=2, ArmChair=2, SideTable=1, Dresser=1),
        _thing("Statue", 12, FEW, Shelf=2, Dresser=3, SideTable=1),
        _thing("TissueBox", 10, SOME, Desk=4, SideTable=2, Shelf=1, DiningTable=2, Drawer=1),
        _thing("Vase", 6, FEW, Shelf=3, Dresser=2, Desk=1, SideTable=1),
        _thing("Boots", 10),
        _thing("Cloth", 9, FEW),
        _thing("Blinds", 96, FEW),
        _thing("Chair", 78, FEW),
        _thing("Curtains", 3),
        _thing(LAMP, 74, ((1, 6), (2, 1)), Desk=6, SideTable=6, Dresser=5, Shelf=1),
        _thing("HousePlant", 33, ONE, Shelf=2, Cabinet=1, Desk=1),
        _thing("LaundryHamperLid", 23),
        _thing("LightSwitch", 100),
        _thing("Mirror", 100),
        _thing("Painting", 51, FEW),
        _thing("Poster", 13, FEW),
        _thing("Television", 13, ONE, Dresser=1),
        _thing("Window", 100, FEW),
    ),
)

BATHROOM = RoomKind(
    "bathroom",
    401,
    (
        ("BathtubBasin", ((0, 7), (1, 18))),
        ("Cabinet", ((0, 13), (2, 1), (3, 1), (4, 8), (5, 1), (9, 1))),
        ("Cart", ((0, 23), (1, 2))),
        ("CounterTop", ((0, 4), (1, 18), (2, 3))),
        ("Drawer", ((0, 12), (1, 2), (2, 2), (4, 4), (6, 2), (8, 3))),
        ("Dresser", ((0, 23), (1, 2))),
        ("GarbageCan", ONE),
        ("HandTowelHolder", ((1, 14), (2, 11))),
        ("Shelf", ((0, 19), (1, 3), (2, 1), (3, 1), (4, 1))),
        ("SideTable", ((0, 23), (1, 2))),
        ("SinkBasin", ((1, 13), (2, 12))),
        ("Toilet", ONE),
        ("ToiletPaperHanger", ONE),
        ("TowelHolder", ((1, 17), (2, 8))),
    ),
    (
        _thing("Candle", 100, SOME, Toilet=10, CounterTop=10, Cabinet=14, Shelf=10, Drawer=5, Dresser=6, Cart=6),
        _thing("Cloth", 100, SOME, BathtubBasin=8, Cabinet=14, CounterTop=5, Drawer=6, SinkBasin=3, Shelf=8, Toilet=1),
        _thing("HandTowel", 100, ((1, 8), (2, 2)), HandTowelHolder=12, CounterTop=1),
        _thing("Plunger", 100),
        _thing("ScrubBrush", 100),
        _thing(
            "SoapBar", 100, SOME, CounterTop=10, SinkBasin=6, Toilet=5, Cabinet=8, Shelf=10, Drawer=4, BathtubBasin=3
        ),
        _thing("SoapBottle", 100, SOME, CounterTop=10, Toilet=8, Cabinet=17, Shelf=10, GarbageCan=3, Drawer=2),
        _thing(
            "SprayBottle", 100, SOME, CounterTop=12, Toilet=8, Cabinet=17, GarbageCan=3, Shelf=10, Cart=16, Dresser=12
        ),
        _thing("ToiletPaper", 100, ROLLS, Toilet=8, Cabinet=17, CounterTop=6, ToiletPaperHanger=5, Shelf=9),
        _thing("Towel", 100, ((1, 9), (2, 1)), TowelHolder=1),
        _thing("TissueBox", 19, SOME, Shelf=12, CounterTop=4, Drawer=4, Cart=8, Cabinet=1),
        _thing("DishSponge", 16, FEW, BathtubBasin=3, Toilet=2, Cart=12, SinkBasin=1, Shelf=3),
        _thing("Bathtub", 65),
        _thing("HousePlant", 4, ONE, SideTable=1, CounterTop=1),
        _thing("LightSwitch", 100),
        _thing("Mirror", 100),
        _thing("Painting", 10),
        _thing("ShowerDoor", 62),
        _thing("ShowerGlass", 43),
        _thing("Sink", 100, ((1, 1), (2, 1))),
        _thing("Window", 69, FEW),
    ),
)

ROOMS = (KITCHEN, LIVING_ROOM, BEDROOM, BATHROOM)
