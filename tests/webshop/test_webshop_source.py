from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shop_files import ATTRIBUTES, ENTRIES, HUMAN, entry, values, write_official, write_shop

from envsuite.core import DataError
from envsuite.webshop import json_stream
from envsuite.webshop.documents import document, documents
from envsuite.webshop.json_stream import elements, members
from envsuite.webshop.source import attributes_of, official_files, products_of, wishes_of

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
in_one_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_stream, "PIECE", 3)


@in_one_folder
@given(st.lists(JSON, max_size=5), st.sampled_from([None, 2]))
def test_an_array_is_read_element_by_element_as_json_reads_it(tmp_path, small_pieces, content, indent):
    path = tmp_path / "array.json"
    path.write_text(json.dumps(content, indent=indent, ensure_ascii=len(content) % 2 == 0), "utf-8", "surrogatepass")
    assert list(elements(path)) == content


@in_one_folder
@given(st.dictionaries(st.text(alphabet=st.characters(exclude_categories=["Cs"])), JSON, max_size=5))
def test_an_object_is_read_member_by_member_as_json_reads_it(tmp_path, small_pieces, content):
    path = tmp_path / "object.json"
    path.write_text(json.dumps(content))
    assert dict(members(path)) == content


@in_one_folder
@given(st.data())
def test_a_damaged_file_is_read_or_refused_with_its_name(tmp_path, data):
    content = bytearray(json.dumps(ENTRIES[:2] + ENTRIES[3:7]).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content) - 1))
        kind = data.draw(st.integers(0, 2))
        if kind == 0:
            content[at] = data.draw(st.integers(0, 255))
        elif kind == 1:
            del content[at : at + data.draw(st.integers(1, 400))]
        else:
            content[at:at] = data.draw(st.binary(max_size=4))
        content = content or bytearray(b"x")
    path = tmp_path / "damaged.json"
    path.write_bytes(content)
    try:
        list(products_of(path))
    except DataError as error:
        assert str(path) in str(error)


@in_one_folder
@given(st.dictionaries(st.sampled_from(sorted(ENTRIES[0])), JSON, min_size=1))
def test_any_value_in_any_field_is_cleaned_or_refused_with_its_place(tmp_path, changes):
    path = tmp_path / "changed.json"
    path.write_text(json.dumps([ENTRIES[0], entry("B000000009", "Changed") | changes]))
    try:
        products = list(products_of(path))
    except DataError as error:
        assert "entry 1" in str(error)
    else:
        for product in products:
            assert len(product.asin) <= 10 and product.price_tag.startswith("$") and product.prices


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "the file ends before a JSON array"),
        (b"{}", "a JSON array of products was expected, found '{'"),
        (b"[1]", "entry 0: a product was expected, not int"),
        (b"[{}]", "without asin, name, category"),
        (b"[[", "truncated"),
        (b'[{"asin": "B000', "truncated, or not JSON"),
        (b"[] []", "more after the end"),
        (b"\xef\xbb\xbf[]", "a JSON array of products was expected"),
        (b"[" * 100_000, "nested too deeply"),
        (b'["\xff"]', "not UTF-8"),
        (None, "cannot be read (No such file"),
    ],
)
def test_a_foreign_or_truncated_product_file_is_refused(tmp_path, content, said):
    path = tmp_path / "products.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=r"products\.json") as caught:
        list(products_of(path))
    assert said in str(caught.value)


def test_entries_and_members_are_parted_by_commas(tmp_path):
    (tmp_path / "array.json").write_text("[{} {}]")
    with pytest.raises(DataError, match=r"character 4: a comma or ']' was expected, found '\{'"):
        list(elements(tmp_path / "array.json"))
    (tmp_path / "object.json").write_text('{"a": 1,}')
    with pytest.raises(DataError, match=r"object\.json"):
        list(members(tmp_path / "object.json"))


def test_products_are_cleaned_as_the_original_cleans_them(tmp_path):
    products = {raw.asin: raw for raw in products_of(write_shop(tmp_path).products)}
    assert list(products) == [f"B00000000{i}" for i in (1, 2, 3, 5, 6, 7)] + ["b00000000x"]
    first = products["B000000001"]
    assert first.title == "Steel Kettle for Tea", "the first of two with one ASIN counts"
    assert first.options == {"color": ("navy | blue", "red"), "size": ("1 l", "2 l")}, "null options are none"
    assert (first.prices, first.price_tag, first.query) == ((10.0, 30.0), "$10.0 to $30.0", "kettles")
    assert (products["B000000002"].prices, products["B000000002"].price_tag) == ((100.0,), "$100.0")
    assert (products["B000000003"].prices, products["B000000003"].bullets) == ((1847.0,), ("one bullet",))
    assert products["B000000005"].prices == (5.0, 6.0)
    assert products["B000000005"].options == {"size": ("s", "m", "m"), "fit": ("s", "buy now")}
    broken = products["B000000006"]
    assert (broken.title, broken.description, broken.image) == ("Broken \ufffd Pair", "", "")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pricing": "call us"}, "pricing 'call us' names no price"),
        ({"pricing": "$"}, "pricing '\\$' names no price"),
        ({"pricing": 7}, "pricing 7 names no price"),
        ({"customization_options": [1]}, "customization_options is list"),
        ({"customization_options": {"size": [*values("s"), {"value": None}]}}, "option 'size' has an entry without"),
        ({"small_description": [3]}, "small_description is int"),
        ({"name": 3}, "name is int"),
    ],
)
def test_what_the_original_would_die_of_is_refused_with_its_place(tmp_path, changes, said):
    path = tmp_path / "products.json"
    path.write_text(json.dumps([entry("B000000001", "Kettle") | changes]))
    with pytest.raises(DataError, match=rf"products.json, entry 0 \(B000000001\): {said}"):
        list(products_of(path))


@pytest.mark.parametrize(
    ("read", "content", "said"),
    [
        (attributes_of, [], "a JSON object with an entry for each product was expected"),
        (attributes_of, {"B1": []}, "entry 'B1': an object was expected"),
        (attributes_of, {"B1": {"attributes": "steel"}}, "attributes is str, not a list"),
        (attributes_of, {"B1": {"instruction": 3}}, "instruction is int"),
        (wishes_of, {"B1": {}}, "a list was expected"),
        (wishes_of, {"B1": [{"instruction": "a"}]}, "needs instruction, instruction_attributes"),
        (wishes_of, {"B1": [HUMAN["B000000001"][0] | {"instruction_options": "red"}]}, "is str, not a list"),
    ],
)
def test_a_foreign_attribute_or_instruction_file_is_refused(tmp_path, read, content, said):
    path = tmp_path / "file.json"
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match=said):
        dict(read(path))


def test_attributes_keep_what_goals_need(tmp_path):
    read = dict(attributes_of(write_shop(tmp_path).attributes))
    assert {asin: json.loads(json.dumps(kept)) for asin, kept in read.items()} == ATTRIBUTES


def test_official_files_are_looked_for_by_name_and_both_sets_may_be_in_a_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ENVSUITE_DATA", str(tmp_path))
    folder = tmp_path / "webshop"
    with pytest.raises(DataError, match=r"no WebShop data. It needs items_shuffle_1000.json .* \(official-1k\) or"):
        official_files(tmp_path)
    write_official(folder, "_1000")
    (folder / "items_shuffle.json").write_text("[]")
    assert official_files(folder) == official_files("official-1k") and official_files(folder).human is None
    with pytest.raises(DataError, match=r"needs items_shuffle.json .* \(official-full\), .*fetch webshop-full`"):
        official_files("official-full")
    write_official(folder, "")
    (folder / "items_human_ins.json").write_text("{}")
    small, full = official_files("official-1k"), official_files("official-full")
    assert (small.products.name, full.products.name) == ("items_shuffle_1000.json", "items_shuffle.json")
    assert small.human == full.human == folder / "items_human_ins.json"
    with pytest.raises(DataError, match=r"has both sets.*'official-1k' .* or 'official-full'"):
        official_files()
    with pytest.raises(DataError, match=r"has both sets.*Give a folder with one of them"):
        official_files(folder)


PRODUCT: dict[str, Any] = {
    "asin": "B000000001",
    "name": "Red Shirt",
    "full_description": "Soft",
    "small_description": ["Cotton", "Machine wash"],
    "customization_options": {"Color": [{"value": " Red/Blue "}, {"value": "Green"}], "Size": [{"value": "XL"}]},
}


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("asin", "B000000001", "red shirt soft cotton color: red | blue, green, and size: xl"),
        ("customization_options", "", "red shirt soft cotton "),
        ("customization_options", None, "red shirt soft cotton "),
        ("customization_options", {"Color": None, "Size": [{"value": "S"}]}, "red shirt soft cotton size: s"),
        ("small_description", "One text", "red shirt soft one text color: red | blue, green, and size: xl"),
        ("small_description", [], "red shirt soft  color: red | blue, green, and size: xl"),
        ("full_description", None, "red shirt  cotton color: red | blue, green, and size: xl"),
    ],
)
def test_a_document_is_name_description_bullet_and_options_where_they_are(field, value, text):
    assert document({**PRODUCT, field: value}) == text


def test_a_product_with_no_asin_of_its_own_is_left_out():
    asins = ["B000000001", "nan", "B0000000012", "B000000002", "B000000001"]
    assert [asin for asin, _ in documents({**PRODUCT, "asin": a} for a in asins)] == ["B000000001", "B000000002"]
