from docs.build import FENCE, ROOT
from envsuite.prompting import make_memory

BLOCKS = FENCE.findall((ROOT / "docs" / "prompting.md").read_text("utf-8"))
EXAMPLE = BLOCKS[1][1]


def test_the_example_prints_what_the_page_says(smol, capsys):
    exec(EXAMPLE, {"tokenizer": smol})
    assert capsys.readouterr().out == BLOCKS[2][1]


def test_the_window_shows_what_the_page_says(smol, capsys):
    exec(EXAMPLE.replace(repr(str(make_memory("full"))).replace("'", '"'), '"window(2)"'), {"tokenizer": smol})
    assert capsys.readouterr().out.endswith("\n\n" + BLOCKS[4][1])
