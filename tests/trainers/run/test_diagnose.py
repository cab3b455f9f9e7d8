"""``envsuite diagnose``, as it is typed."""

import json

from tiny_runs import trained, write_settings

from envsuite.cli import main
from trainers.credit.diagnosis import MEASURES


def test_a_models_own_episodes_are_measured_and_written(place, capfd):
    settings, out = write_settings(place), place / "found" / "diagnosis.json"
    assert main(["diagnose", "--config", str(settings), "--json", str(out), "--rollout.tasks", "3"]) == 0
    shown = capfd.readouterr().out
    body = json.loads(out.read_text("utf-8"))
    assert (body["environment"], body["episodes"], body["groups"], body["failed"]) == ("TextCraft-v0", 9, 3, 0)
    assert set(body["measures"]) == set(MEASURES)
    assert 0.0 < body["measures"]["gradient_cosine"]["value"] < 1.0 and "no episode succeeded in 9" in shown
    assert body["measures"]["success"]["value"] == 0.0 and body["measures"]["late_reward"]["value"] is None
    assert all(name in shown for name in body["measures"]) and max(map(len, shown.splitlines())) <= 110
    assert [" ".join(part.split()) for part in shown.split("\n\n")[1:]] == [*body["untold"], *body["map"]]
    with_seed = ["--config", str(settings), "--json", str(out), "--rollout.tasks", "3"]
    assert main(["diagnose", *with_seed]) == 0 and json.loads(out.read_text("utf-8")) == body, "the same episodes again"


def test_an_environment_is_named_in_place_of_those_of_the_settings(place, capfd):
    words = ["--config", str(write_settings(place)), "--rollout.tasks", "1", "--rollout.group_size", "2"]
    assert main(["diagnose", "corridor_world:Corridor-v0", *words]) == 0
    assert capfd.readouterr().out.startswith("corridor_world:Corridor-v0; episodes: 2, groups: 1, failed: 0\n")
    assert main(["diagnose", "Nowhere-v0", *words]) == 2
    assert "Nowhere-v0" in capfd.readouterr().err
    assert main(["diagnose", "corridor_world:Corridor-v0", *words, "--rollout.group_size", "1"]) == 2
    assert "rollout.group_size is 1" in capfd.readouterr().err


def test_episodes_that_are_there_need_no_model(place, capfd):
    pool = place / "pool"
    trained(place, iterations=2, episodes_every=1, pool={"folder": str(pool)}, **{"evaluation.envs": []})
    run, out = place / "runs" / "tiny", place / "out.json"
    (place / "model" / "model.safetensors").unlink()
    counts = {}
    for source in (run, run / "episodes" / "iteration-00001.parquet", pool):
        assert main(["diagnose", str(source), "--json", str(out)]) == 0
        body = json.loads(out.read_text("utf-8"))
        counts[source] = body["episodes"], body["groups"]
        assert "gradient_cosine" not in body["measures"] and body["measures"]["prompt_overlap"]["value"] > 0.0
    assert list(counts.values()) == [(12, 4), (6, 2), (12, 4)]
    capfd.readouterr()
    assert main(["diagnose", str(place)]) == 1
    assert "no episodes there; give the folder of a run that keeps them (episodes_every: 1)" in capfd.readouterr().err
    assert main(["diagnose", str(place / "none.parquet")]) == 1
    assert "no such file" in capfd.readouterr().err
