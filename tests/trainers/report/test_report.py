"""report.html and plots/."""

from __future__ import annotations

import base64
import html
import json
import re
import shutil
import subprocess
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chromium import chromium
from episodes import episode as made_episode
from episodes import step as made_step
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.image import imread
from synthetic_run import make_run

from envsuite.core import ToolCall
from envsuite.core.errors import DataError
from envsuite.core.images import as_png
from trainers.programs.report import main
from trainers.report.html import script_json, write_html
from trainers.report.pack import STEP_FIELDS, pack
from trainers.report.plots import _success, write_plots
from trainers.report.run import PHASE_COLOURS, RunData, moving_mean
from trainers.steps.parquet import read_table, write_episodes

HOSTILE = (
    "</script><script>document.title='broken'</script><!-- \0 \x1b[31m & \u2028 ]]> \U0001f600 日本 'x' \"y\" $\\frac$"
)


def write_report(folder: Path) -> Path:
    write_plots(run := RunData.load(folder))
    return write_html(run)


def unpack(payload: str) -> list[dict[str, Any]]:
    """What browser.js does, in Python: strings as UTF-16 units."""

    def units(text: str) -> bytes:
        return text.encode("utf-16-le", "surrogatepass")

    episodes = json.loads(zlib.decompress(base64.b64decode(payload)))
    first = b""
    for episode in episodes:
        before = first
        for index, values in enumerate(episode["steps"]):
            step = dict(zip(STEP_FIELDS, values, strict=True))
            if step["prompt"] is not None:
                start, middle, end = step["prompt"]
                prompt = before[: 2 * start] + units(middle) + (before[-2 * end :] if end else b"")
                if index == 0:
                    first = prompt
                before = prompt + units(step["response"] or "")
                step["prompt"] = prompt.decode("utf-16-le")
            episode["steps"][index] = step
    return episodes


TEXTS = st.text(st.sampled_from("ab\0\U0001f600\U0001f601\ufeffé"), max_size=8)


@given(st.lists(st.lists(st.tuples(TEXTS, TEXTS), max_size=4), max_size=4))
@settings(max_examples=60, deadline=None)
def test_every_prompt_and_response_comes_back_from_the_packed_form(tmp_path_factory, texts):
    path = tmp_path_factory.mktemp("pack") / "x.parquet"
    episodes = [made_episode(i, *(made_step(t) for t in range(len(pairs)))) for i, pairs in enumerate(texts)]
    write_episodes(path, episodes, text={(i, t): pair for i, pairs in enumerate(texts) for t, pair in enumerate(pairs)})
    found = unpack(pack(path).payload)
    assert [[(s["prompt"], s["response"]) for s in one["steps"]] for one in found] == texts


def test_the_packed_form_has_every_step_of_every_episode(run_folder):
    path = run_folder / "episodes" / "iteration-00003.parquet"
    rows = [row for row in read_table(path).to_pylist() if row["t"] >= 0]
    steps = [s for one in unpack(pack(path).payload) for s in one["steps"]]
    assert [s["prompt"] for s in steps] == [row["prompt_text"] for row in rows]
    assert [s["advantage"] for s in steps] == pytest.approx([row["advantage"] for row in rows], rel=1e-5)
    means = [sum(row["response_logprobs"]) / len(row["response_logprobs"]) for row in rows]
    assert [s["logprob"] for s in steps] == pytest.approx(means, rel=1e-5)
    assert [s["response_tokens"] for s in steps] == [len(row["response_ids"]) for row in rows]


@given(st.text())
def test_data_in_a_script_element_cannot_end_it_and_comes_back(text):
    packed = script_json({"text": text + HOSTILE})
    assert "<" not in packed and packed.isascii()
    assert json.loads(packed) == {"text": text + HOSTILE}


@pytest.fixture(scope="module")
def hostile_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose names, tasks, prompts, completions and arguments try to break the page."""
    folder = make_run(tmp_path_factory.mktemp("runs") / "hostile", iterations=2, name=HOSTILE, note=[HOSTILE])
    call = ToolCall("craft", {"item": HOSTILE, "n": float("nan"), "half": "\ud800"})
    episodes = [
        made_episode(
            5,
            made_step(0, action=(call,)),
            made_step(1, parse_error=HOSTILE, valid=False),
            task=HOSTILE,
            task_id=HOSTILE,
        ),
        made_episode(6, error=HOSTILE, success=False),
        made_episode(7, made_step(0, reward=float("inf"), response_ids=(), response_logprobs=())),
    ]
    text = {(5, 0): (f"KNOWN-PROMPT {HOSTILE}", f"KNOWN-ANSWER {HOSTILE}"), (5, 1): ("KNOWN-SECOND", HOSTILE * 2)}
    write_episodes(folder / "episodes" / "iteration-00002.parquet", episodes, {(5, 1): -0.875}, text)
    write_report(folder)
    return folder


@pytest.mark.seconds
def test_the_report_names_no_other_file_and_what_a_run_says_adds_no_script(hostile_run, run_folder):
    page = (hostile_run / "report.html").read_text(encoding="utf-8")
    without_data = re.sub(r"<script type=.*?</script>", "", page, flags=re.DOTALL)
    assert re.findall(r"(?:src|href)\s*=\s*\"(?!#|data:)[^\"]*", without_data) == []
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)", without_data) == []
    assert re.findall(r"@import|url\(|fetch\(|XMLHttpRequest|innerHTML", without_data) == []
    assert "\0" not in page
    write_report(run_folder)
    counts = []
    for folder in (hostile_run, run_folder):
        page = (folder / "report.html").read_text(encoding="utf-8")
        data = len(re.findall(r'<script type="text/plain" id="(?:episodes|advantages|graphs)-\d+">', page))
        assert data == 3 * len(list((folder / "episodes").iterdir()))
        counts.append((page.count("<script") - data, page.count("</script") - data))
    assert counts[0] == counts[1] == (7, 7)


def dom(page: Path, address: str = "", width: int = 1280) -> str:
    """The page's elements after its scripts have run."""
    command = [
        chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
        "--disable-dev-shm-usage", f"--window-size={width},1000", "--virtual-time-budget=5000", "--dump-dom",
        page.resolve().as_uri() + address,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, timeout=180, check=True)
    return html.unescape(done.stdout.decode("utf-8").partition("<body")[2].split('<script type="')[0])


@pytest.mark.slow
def test_a_browser_shows_results_curves_times_and_the_last_iteration(run_folder):
    write_report(run_folder)
    shown = dom(run_folder / "report.html", "#episodes/iteration-6/0")
    assert "Success on TextCraft-v0, split test" in shown and "depth-3" in shown
    assert shown.count("<svg") >= 8 and "NaN" not in shown
    assert "generation" in shown and "12 of 12 episodes" in shown
    columns = shown.partition('aria-label="Shares of each iteration"')[2].partition("<table")[0]
    assert [f'title="iteration {i}: longest episodes' in columns for i in range(1, 8)] == [True] * 6 + [False]
    last = read_table(run_folder / "episodes" / "iteration-00006.parquet").slice(0, 1).to_pylist()[0]
    assert last["prompt_text"] in shown and last["response_text"] in shown


def test_a_browser_shows_hostile_text_as_text(hostile_run):
    shown = dom(hostile_run / "report.html", "#episodes/iteration-2/5/0")
    visible = HOSTILE.replace("\0", "␀").replace("\x1b", "␛")
    assert f"KNOWN-PROMPT {visible}" in shown
    assert f"KNOWN-ANSWER {visible}" in shown
    second = dom(hostile_run / "report.html", "#episodes/iteration-2/5/1")
    assert "-0.875" in second and f"no action\n→ {visible}" in second
    assert "Failed, not trained on" in dom(hostile_run / "report.html", "#episodes/iteration-2/6")


@pytest.mark.seconds
def test_a_browser_shows_the_images_of_an_observation_and_none_of_its_history(run_folder):
    rng = np.random.default_rng(0)
    past, now = (rng.integers(0, 256, (8, 8, 3), np.uint8) for _ in range(2))
    seen = [((past,), 1), ((past, now), 1), ((past, now), 2), ((), 0)]
    path = run_folder / "episodes/iteration-00007.parquet"
    write_episodes(
        path, [made_episode(0, *(made_step(t, images=images, shown=n) for t, (images, n) in enumerate(seen)))]
    )
    (packed,) = unpack(pack(path).payload)
    png = {name: base64.b64encode(as_png(image)).decode() for name, image in (("past", past), ("now", now))}
    assert [step["images"] for step in packed["steps"]] == [
        [png["past"]], [png["now"]], [png["past"], png["now"]], [],
    ]  # fmt: skip
    write_report(run_folder)
    shown = dom(run_folder / "report.html", "#episodes/iteration-7/0/1")
    assert f'src="data:image/png;base64,{png["now"]}"' in shown and png["past"] not in shown.split("<pre")[0]


def test_a_run_that_has_just_begun_has_a_report(tmp_path):
    (tmp_path / "config.yaml").write_text("name: young\n")
    assert write_report(tmp_path) == tmp_path / "report.html"
    assert write_plots(RunData.load(tmp_path)) == []


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("file", "content"),
    [("config.yaml", b"a: [1"), ("config.yaml", b"\xff"), ("config.yaml", b"just text"), ("summary.json", b'{"evalu'),
     ("summary.json", b'{"evaluations": [1]}'), ("summary.json", b"[]"), ("metrics.jsonl", b"{\n"),
     ("episodes/iteration-00001.parquet", b"PAR1")],
)  # fmt: skip
def test_a_damaged_file_of_a_run_is_named(run_folder, tmp_path, file, content):
    folder = shutil.copytree(run_folder, tmp_path / "run")
    (folder / file).write_bytes(content)
    with pytest.raises(DataError, match=re.escape(file)):
        write_report(folder)
    assert not list(folder.glob(".report*"))


@pytest.mark.seconds
def test_the_command_rebuilds_report_plots_and_tables(run_folder, capsys):
    (run_folder / "report.html").unlink(missing_ok=True)
    assert main([str(run_folder), "--format", "markdown"]) == 0
    assert "| tasks | n | before, % | after, % | change |" in capsys.readouterr().out
    assert (run_folder / "report.html").exists()
    assert {path.name for path in (run_folder / "plots").iterdir()} == {
        "success.png", "loss.png", "policy.png", "episodes.png", "speed.png", "time.png", "before_after.png"
    }  # fmt: skip
    for path in (run_folder / "plots").iterdir():
        height, width, _ = imread(path).shape
        assert width > 700 and height > 300


def test_evaluations_come_before_iterations_and_both_in_order(tmp_path):
    folder = make_run(tmp_path / "run", iterations=1, groups=1, size=1)
    for name in ("eval-00000", "eval-00000-1", "eval-00020", "iteration-00010", "iteration-100000", "other"):
        (folder / "episodes" / f"{name}.parquet").touch()
    assert [label for label, _ in RunData.load(folder).episode_files()] == [
        "evaluation at iteration 0", "evaluation at iteration 0, environment 2", "other", "evaluation at iteration 20",
        "iteration 1", "iteration 10", "iteration 100000",
    ]  # fmt: skip


# Of Machado, Oliveira and Fernandes 2009: red-, green- and blue-blind eyes; then sRGB to XYZ over its white.
EYES = """1 0 0 0 1 0 0 0 1
.152286 1.052583 -.204868 .114503 .786281 .099216 -.003882 -.048116 1.051998
.367322 .860646 -.227968 .280085 .672501 .047413 -.01182 .04294 .968881
1.255528 -.076749 -.178779 -.078411 .930809 .147602 .004733 .691367 .3039
.433953 .376219 .189828 .212673 .715152 .072175 .017758 .109477 .872766"""


def test_the_colours_of_phases_differ_for_every_eye():
    *eyes, white = np.array(EYES.split(), float).reshape(5, 3, 3)
    colours = np.array([list(bytes.fromhex(colour[1:])) for colour in PHASE_COLOURS.values()]) / 255
    for eye in eyes:
        x, y, z = np.cbrt(np.clip(white @ eye @ (colours**2.2).T, 0, 1))
        lab = np.stack([116 * y, 500 * (x - y), 200 * (y - z)], -1)
        apart = np.linalg.norm(lab[:, None] - lab, axis=-1)
        assert apart[np.triu_indices(len(lab), 1)].min() > 15


def test_times_add_up_to_the_total(run_folder):
    run = RunData.load(run_folder)
    total = sum(run.series("time/total")[1]) + sum(run.series("time/eval")[1])
    assert sum(seconds for _, seconds in run.times()) == pytest.approx(total)


def test_the_plot_of_success_joins_no_evaluations(run_folder):
    run, axis = RunData.load(run_folder), Figure().subplots()
    _success(run, axis)
    (held_out,) = (one for one in axis.containers if str(one.get_label()).startswith("held-out"))
    assert held_out.lines[0].get_linestyle() == "None" and len(held_out.lines[0].get_xdata()) > 2
    (each,) = (line for line in axis.lines if line.get_label() == "training, other tasks each iteration")
    assert list(each.get_ydata()) == run.series("train/success")[1]


def test_a_moving_mean_of_one_is_the_series():
    assert moving_mean([1.0, 2.0, 6.0], 1) == [1.0, 2.0, 6.0]
    assert moving_mean([1.0, 2.0, 6.0], 2) == [1.0, 1.5, 4.0]
