"""Draws rooms from a seed: their receptacles, and the objects in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import count

from envsuite.alfworld.vocabulary import BEDROOM, BESIDE, FIXED, LAMP, ROOMS, SHUT, Counts, ItemSpec, RoomKind
from envsuite.core.draws import Draw
from envsuite.core.errors import UsageError

EDITION = 3
"""Part of the folder name of generated games; increased when a seed gives other games than before."""
PLANS = 30
"""Floor plans of each kind of room."""
UNSEEN = 4
"""The last of them, which are kept for ``valid_unseen``."""
HABIT = 70
"""Percentage of objects that are in the usual receptacles of their type in that room."""
DROPPED = 4
"""Percentage of objects on the floor."""
NEAR = 15
"""Percentage of the objects on the floor that are beside a receptacle."""
REACH = 600
"""Largest distance from the middle of a room, in centimetres."""
TILTS = (60, 60, 45, 30, 15)
"""Camera tilts at a location, in degrees."""
_BOUNDS = {"receptacles": (1, 300), "things": (1, 300), "hidden": (0, 100), "decoys": (0, 20)}


@dataclass(frozen=True)
class SceneDifficulty:
    """Difficulty of the games; the defaults are those of ALFRED's rooms."""

    receptacles: int = 100
    """Percentage of the usual number of receptacles; every kind that a room has occurs at least once."""
    things: int = 100
    """Percentage of the usual number of objects of each type."""
    hidden: int | None = None
    """Percentage of games in which all objects of the goal's type are in closed receptacles; in the others, as many as
    the goal needs are in the open. ``None``: as in the family's games in ALFWorld."""
    decoys: int | None = None
    """Number of further objects of the goal's type; ``None``: as in ALFWorld's games."""

    def __post_init__(self) -> None:
        for field, (low, high) in _BOUNDS.items():
            value = asdict(self)[field]
            if value is not None and not low <= value <= high:
                raise UsageError(f"SceneDifficulty.{field} must be from {low} to {high}, got {value}")


@dataclass(frozen=True)
class Receptacle:
    """A receptacle: objects are in or on it."""

    id: str
    kind: str
    spot: str
    """Location of the agent when it is at the receptacle."""
    door: bool
    """Whether it can be opened; it is closed at the start."""


@dataclass(frozen=True)
class Item:
    """An object in a room."""

    id: str
    kind: str
    host: Receptacle | None
    """Its receptacle; ``None`` on the floor, out of reach."""
    spot: str
    """Its location: the receptacle's, or one on the floor."""


@dataclass(frozen=True)
class Layout:
    """A room without its movable objects."""

    room: RoomKind
    plan: int
    """Number of the floor plan."""
    receptacles: tuple[Receptacle, ...]
    fixed: tuple[Item, ...]
    usual: Mapping[str, tuple[Receptacle, ...]]
    """Usual receptacles of each type of object in the room; none: on the floor."""

    @property
    def signature(self) -> tuple[tuple[str, int], ...]:
        """Returns the number of receptacles of each kind, by which layouts are told apart."""
        return tuple(sorted(Counter(r.kind for r in self.receptacles).items()))

    @property
    def lamp(self) -> Item | None:
        """A lamp that can be switched on, if the room has one."""
        return next((item for item in self.fixed if item.kind == LAMP and item.host is not None), None)


class Surveyor:
    """Creates unique ids, which encode positions."""

    def __init__(self, draw: Draw, names: Iterable[str] = ()) -> None:
        self.draw = draw
        self.taken = set(names)

    def new_id(self, kind: str) -> str:
        """Returns a new id for an object or receptacle."""
        stem, basin = (kind.removesuffix("Basin"), f"_bar_{kind}") if kind.endswith("Basin") else (kind, "")
        while True:
            x, y, z = (self.draw.below(2 * REACH) - REACH, self.draw.below(200), self.draw.below(2 * REACH) - REACH)
            name = f"{stem}_bar_{_metres(x)}_bar_{_metres(y)}_bar_{_metres(z)}{basin}"
            if self._is_new(name):
                return name

    def spot(self) -> str:
        """Returns a new location: grid position, direction, camera tilt."""
        while True:
            x, z = (self.draw.below(41) - 20, self.draw.below(41) - 20)
            name = f"loc_bar_{_steps(x)}_bar_{_steps(z)}_bar_{self.draw.below(4)}_bar_{self.draw.choose(TILTS)}"
            if self._is_new(name):
                return name

    def _is_new(self, name: str) -> bool:
        new = name not in self.taken
        self.taken.add(name)
        return new


def _metres(centimetres: int) -> str:
    sign = "minus" if centimetres < 0 else "plus"
    return f"_{sign}_{abs(centimetres) // 100:02d}_dot_{abs(centimetres) % 100:02d}"


def _steps(number: int) -> str:
    return f"_minus_{-number}" if number < 0 else str(number)


def _draw_count(draw: Draw, counts: Counts, percent: int) -> int:
    """Draws a number and scales it by ``percent``; the remainder is the probability of one more."""
    whole, remainder = divmod(draw.choose_weighted(counts) * percent, 100)
    return whole + draw.chance(remainder)


def place(draw: Draw, weights: Mapping[str, int], among: Sequence[Receptacle]) -> Receptacle | None:
    """Draws a receptacle of a kind drawn by ``weights``, out of the kinds in ``among``; ``None`` if there is none."""
    kinds = {r.kind for r in among}
    table = [(kind, weight) for kind, weight in weights.items() if kind in kinds]
    if not table:
        return None
    kind = draw.choose_weighted(table)
    return draw.choose([r for r in among if r.kind == kind])


def _draw_layout(draw: Draw, room: RoomKind, plan: int, percent: int) -> Layout:
    surveyor = Surveyor(draw)
    receptacles: list[Receptacle] = []
    for kind, counts in room.receptacles:
        usual = draw.choose_weighted(counts)
        for _ in range(usual and max(1, (usual * percent + 50) // 100)):
            neighbour_kind, chance = BESIDE.get(kind, ("", 0))
            neighbours = [r for r in receptacles if r.kind == neighbour_kind]
            spot = neighbours[-1].spot if neighbours and draw.chance(chance) else None
            name = surveyor.new_id(kind)
            receptacles += [Receptacle(name, kind, spot or surveyor.spot(), kind in SHUT and draw.chance(SHUT[kind]))]
    fixed: list[Item] = []
    usual_places: dict[str, tuple[Receptacle, ...]] = {}
    for spec in room.things:
        if not draw.chance(spec.percent):
            continue
        if spec.kind in FIXED:
            fixed += [
                _put(draw, surveyor, spec.kind, place(draw, spec.places, receptacles), receptacles)
                for _ in range(draw.choose_weighted(spec.counts))
            ]
        else:
            hosts = (place(draw, spec.places, receptacles) for _ in range(3))
            usual_places[spec.kind] = tuple(dict.fromkeys(r for r in hosts if r is not None))
    return Layout(room, plan, tuple(receptacles), tuple(fixed), usual_places)


def _put(draw: Draw, surveyor: Surveyor, kind: str, host: Receptacle | None, receptacles: Sequence[Receptacle]) -> Item:
    if host is not None:
        return Item(surveyor.new_id(kind), kind, host, host.spot)
    spot = draw.choose(receptacles).spot if draw.chance(NEAR) else surveyor.spot()
    return Item(surveyor.new_id(kind), kind, None, spot)


@lru_cache(maxsize=8)
def layouts(seed: int, percent: int = 100) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
    """Returns the layouts of train and valid_seen, and those of valid_unseen, which differ from all of these.

    Each has rooms of every kind, and a bedroom with a lamp.

    Args:
        seed: Determines the layouts, on every machine.
        percent: :attr:`SceneDifficulty.receptacles`.
    """
    seen_layouts = [
        _draw_layout(Draw(f"layout {EDITION} {seed} {percent} {plan} {0}"), room, plan, percent)
        for room in ROOMS
        for plan in range(room.first_plan, room.first_plan + PLANS - UNSEEN)
    ]
    signatures = {layout.signature for layout in seen_layouts}
    unseen_layouts = []
    for room in ROOMS:
        for plan in range(room.first_plan + PLANS - UNSEEN, room.first_plan + PLANS):
            for attempt in count():
                layout = _draw_layout(Draw(f"layout {EDITION} {seed} {percent} {plan} {attempt}"), room, plan, percent)
                if layout.signature not in signatures and (room is not BEDROOM or layout.lamp is not None):
                    break
            unseen_layouts.append(layout)
    return tuple(seen_layouts), tuple(unseen_layouts)


@dataclass(frozen=True)
class Scene:
    """A room with its objects."""

    layout: Layout
    items: tuple[Item, ...]
    start: str
    """Location of the agent at the start, not at any receptacle."""


def furnish(draw: Draw, layout: Layout, percent: int, special: str, choices: Sequence[Sequence[Receptacle]]) -> Scene:
    """Places objects in a room.

    Args:
        draw: Source of randomness.
        layout: The room.
        percent: :attr:`SceneDifficulty.things`.
        special: The type of the goal's objects.
        choices: For each of these objects, the receptacles to choose from.
    """
    names = [name for r in layout.receptacles for name in (r.id, r.spot)]
    surveyor = Surveyor(draw, names + [name for item in layout.fixed for name in (item.id, item.spot)])
    items = list(layout.fixed)
    for spec in layout.room.things:
        if (usual := layout.usual.get(spec.kind)) is None:
            continue
        hosts: list[Receptacle | None]
        if spec.kind == special:
            hosts = [_host(draw, spec, usual, among) or draw.choose(among) for among in choices]
        else:
            hosts = [
                None if draw.chance(DROPPED) else _host(draw, spec, usual, layout.receptacles)
                for _ in range(_draw_count(draw, spec.counts, percent))
            ]
        items += [_put(draw, surveyor, spec.kind, host, layout.receptacles) for host in hosts]
    return Scene(layout, tuple(items), surveyor.spot())


def _host(draw: Draw, spec: ItemSpec, usual: Sequence[Receptacle], among: Sequence[Receptacle]) -> Receptacle | None:
    habitual = [r for r in usual if r in among]
    return draw.choose(habitual) if habitual and draw.chance(HABIT) else place(draw, spec.places, among)
