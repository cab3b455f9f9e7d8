"""The pages of the generated encyclopaedia: facts as varied English, with links to other pages."""

from __future__ import annotations

from envsuite.core.draws import Draw
from envsuite.retrieval.documents import Document
from envsuite.searchqa.entities import DATES, LINKED, Entities, Entity, Value, table

MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
_ARTICLE = ("University of", "museum", "Museum", "Institute", "Academy", "Gallery", "Collection", "Company", "Line")


def mention(entities: Entities, entity: Entity) -> str:
    """Returns an entity's name in a sentence, with its descriptor where another entity has the name."""
    is_shared = entities.bearers[entity.name] > 1
    if entity.kind == "river":
        return f"river {entity.name}" if is_shared else entity.name
    if entity.kind == "town":
        return f"the town of {entity.name}" if is_shared else entity.name
    if is_shared:
        return f"the {entity.descriptor} {entity.name}"
    return f"the {entity.name}" if any(word in entity.name for word in _ARTICLE) else entity.name


def value_text(entities: Entities, relation: str, value: Value, american: bool = False) -> str:
    """Returns the value of a relation in a sentence.

    Args:
        entities: The entities.
        relation: The relation.
        value: Its value.
        american: Whether a date begins with the month.
    """
    if relation in LINKED:
        return mention(entities, entities.all[int(value)])
    if relation in DATES:
        year, month, day = int(value) // 10_000, MONTHS[int(value) // 100 % 100 - 1], int(value) % 100
        return f"{month} {day}, {year}" if american else f"{day} {month} {year}"
    if relation == "population":
        return f"{value:,}"
    return f"{value} km" if relation == "length" else str(value)


def answers(entities: Entities, relation: str, value: Value) -> list[str]:
    """Returns the answer that the value of a relation is, and its aliases."""
    if relation in LINKED:
        return names(entities, entities.all[int(value)])
    first = value_text(entities, relation, value)
    if relation in DATES:
        year, month, day = int(value) // 10_000, int(value) // 100 % 100, int(value) % 100
        return [first, value_text(entities, relation, value, american=True), f"{year}-{month:02d}-{day:02d}"]
    if relation == "population":
        return [first, f"{first} inhabitants", f"{first} people"]
    if relation == "length":
        return [first, f"{value} kilometres", f"{value} kilometers", f"{value}km"]
    return [first]


def names(entities: Entities, entity: Entity) -> list[str]:
    """Returns an entity's name and its other names."""
    aliases = [entity.name, entities.title(entity), mention(entities, entity)]
    if entity.kind == "river":
        aliases += [f"{entity.name} River", f"River {entity.name}"]
    elif entity.kind == "town":
        country = entities.all[int(entity.facts["country"])].name
        aliases.append(f"{entity.name}, {country}")
    elif entity.name.startswith("University of "):
        aliases.append(f"{entity.name.removeprefix('University of ')} University")
    elif "&" in entity.name:
        aliases.append(entity.name.replace("&", "and"))
    return list(dict.fromkeys(aliases))


def page(entities: Entities, entity: Entity, key: str) -> Document:
    """Returns the page of an entity.

    Args:
        entities: The entities.
        entity: One of them.
        key: Determines the wording, together with the entity's number.
    """
    draw = Draw(f"{key} page {entity.number}")
    texts = table("pages")[entity.kind]
    facts = list(entities.chains(entity))
    sentences = [
        _sentence(
            entities, entity, draw, draw.choose(texts[relation]), value_text(entities, relation, value, draw.chance(30))
        )
        for relation, value in draw.sample(facts, len(facts))
    ]
    for filler in draw.sample(texts["filler"], draw.below(4)):
        sentences.insert(draw.below(len(sentences) + 1), _sentence(entities, entity, draw, filler))
    definition = draw.choose(texts["definition"])
    if "{life}" in definition and not {"birth", "death"} <= dict(facts).keys():
        definition = texts["definition"][0]
    text = " ".join([_sentence(entities, entity, draw, definition), *sentences])
    links = [entities.title(entities.all[int(value)]) for relation, value in facts if relation in LINKED]
    return Document(entities.title(entity), entities.title(entity), text, links=tuple(dict.fromkeys(links)))


def _sentence(entities: Entities, entity: Entity, draw: Draw, template: str, value: str = "") -> str:
    """Returns a sentence of a page."""
    words, male = table("names"), entity.male
    birth_year, death_year = (int(entity.facts.get(date, 0)) // 10_000 for date in DATES)
    product, product2 = draw.sample(words["products"], 2)
    fields = {
        **{"he": "he" if male else "she", "his": "his" if male else "her", "wife": "wife" if male else "husband"},
        **{"He": "He" if male else "She", "His": "His" if male else "Her", "him_or_her": "her" if male else "him"},
        **{"name": entity.name, "value": value, "a_descriptor": _a(entity.descriptor), "product": product},
        **{"product2": product2, "feature": draw.choose(words["features"]), "genre": draw.choose(words["genres"])},
        **{"industry": draw.choose(words["industries"]), "subject": draw.choose(words["subjects"])},
        **{"hobby": draw.choose(words["hobbies"]), "award": draw.choose(words["awards"])},
        **{"style": draw.choose(words["styles"]), "a_noun": _a(draw.choose(words["nouns"]).lower())},
        "life": f"{birth_year}-{death_year}",
    }
    text = template.format(**fields)
    return text[:1].upper() + text[1:]


def _a(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"
