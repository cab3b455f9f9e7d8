"""``envsuite pool``: each command does what its line says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from episodes import episode, step

from trainers.imitation.demonstrations import episodes_in
from trainers.pool import Pool, PoolWriter
from trainers.steps.parquet import read_episodes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A pool with two groups of two sessions, and an open one."""
    with PoolWriter(tmp_path / "pool") as pool:
        for n in range(4):
            last = step(1, observation="A [red] door", response_text="open it", reward=float(n % 2))
            pool.store(f"s{n}", episode(n, step(0), last, group_id=n // 2, success=n == 3, score=n / 4), source="run")
        pool.open_session("s9", source="gateway")
    return tmp_path / "pool"


def _names(folder: Path) -> list[str]:
    with Pool(folder) as pool:
        return [one.session for one in pool.sessions()]


def test_list_and_show_print_what_is_stored_with_whole_names_and_as_json(folder, console):
    out, _ = console(f"pool list {folder}")
    assert [line.split()[1] for line in out.splitlines() if line.startswith("│")] == ["s0", "s1", "s2", "s3", "s9"]
    assert out.endswith("list: 5 sessions\n")
    out, _ = console(f"pool list {folder} --min_score 0.5 --success false")
    assert " s2 " in out and out.endswith("list: 1 session\n")
    out, _ = console(f"pool show {folder} s3")
    assert "step 1 (2 + 2 tokens, reward 1)\nA [red] door\n> open it\n" in out and "success: True, score: 0.75" in out
    name, task = f"run/{'a' * 90}/1", "dark_oak_" + "b" * 90
    with PoolWriter(folder) as pool:
        pool.open_session(name, source="gateway", task_id=task, tags=["new"])
    assert name in (out := console(f"pool list {folder}")[0]) and task in out
    rows = {row["session"]: row for row in json.loads(console(f"pool list {folder} --json")[0])}
    assert [*rows] == _names(folder) and rows["s3"]["score"] == 0.75
    assert [rows[name][key] for key in ("task", "success", "steps", "tags")] == [task, "open", 0, ["new"]]


def test_tag_and_reward_change_sessions(folder, console):
    assert console(f"pool tag {folder} good --min_score 0.5")[0] == "tag: 2 sessions\n"
    console(f"pool tag {folder} good --name s2 --remove")
    console(f"pool reward {folder} s3 -1.5 --success false --score 1")
    with Pool(folder) as pool:
        assert [one.tags for one in pool.sessions()] == [(), (), (), ("good",), ()]
        assert (pool.session("s3").success, pool.session("s3").score) == (False, 1.0)
        assert pool.episode("s3").total_reward == -0.5


def test_export_writes_what_report_and_imitation_read(folder, console):
    console(f"pool export {folder} {folder.parent / 'two.parquet'} --limit 2")
    console(f"pool export {folder} {folder.parent / 'run'} --group_size 2")
    with Pool(folder) as pool:
        stored = pool.episodes()
    assert episodes_in(folder) == stored and len(stored) == 4
    texts = [tuple((one.observation, one.reward) for one in each.steps) for each in stored]
    for name, count in (("two.parquet", 2), ("run/episodes/iteration-00001.parquet", 4)):
        read = read_episodes(folder.parent / name)
        assert [tuple((one.observation, one.reward) for one in each.steps) for each in read] == texts[:count]
    console(f"report {folder.parent / 'run'} --advantages grpo rloo")
    out, problems = console(f"report {folder.parent / 'run'} --episode 2 --advantages grpo rloo")
    assert "grpo" in out and "rloo" in out and not problems
    _, problem = console(f"pool export {folder} {folder.parent / 'none.parquet'} --source nobody", 2)
    assert problem == "error: the query finds no session; envsuite pool list shows what there is\n"


def test_prune_and_delete_session_delete(folder, console):
    assert console(f"pool prune {folder} --limit 2")[0] == "prune: 2 sessions; --yes deletes them\n"
    assert _names(folder) == ["s0", "s1", "s2", "s3", "s9"]
    assert console(f"pool prune {folder} --limit 2 --yes")[0] == "prune: 2 sessions\n"
    assert console(f"pool delete-session {folder} s9")[0] == "delete-session: 1 session\n"
    assert _names(folder) == ["s2", "s3"]


def test_what_cannot_be_is_one_line(folder, console):
    for line, said in {
        f"list {folder.parent}": f"{folder.parent}: not a pool (it has no pool.sqlite)",
        f"show {folder} nobody": f"{folder} has no session 'nobody'; envsuite pool list {folder} lists them",
        f"delete-session {folder} nobody": f"{folder} has no session 'nobody'; open it first",
        f"delete-session {folder} ''": f"{folder} has no session ''; open it first",
        f"list {folder} --min_score 2": "min_score is 2; it must be less than or equal to 1",
        f"reward {folder} s0 much": "reward is 'much'; it must be a valid number, unable to parse string as a number",
    }.items():
        assert console(f"pool {line}", 2) == ("", f"error: {said}\n")
    with PoolWriter(folder, "the gateway"):
        _, said = console(f"pool tag {folder} x", 2)
        assert "in use by the gateway" in said and console(f"pool list {folder}")[0]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system."""
    (folder := tmp_path / "disk").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if sys.platform != "linux" or os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a file system of 4 MiB cannot be mounted here, which only root may")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.seconds
@pytest.mark.parametrize("room", [0, 1, 9, 40])
def test_sessions_are_deleted_from_a_disk_that_is_full(disk, console, monkeypatch, room):
    monkeypatch.setenv("SQLITE_TMPDIR", str(disk))
    secrets = [os.urandom(10_000).hex() for _ in range(24)]
    with PoolWriter(disk / "pool") as pool:
        for n, secret in enumerate(secrets):
            pool.store(f"s{n}", episode(n, step(0, prompt_text=secret), group_id=n), source="run")
    with (disk / "fill").open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(bytes(4096))
    os.truncate(disk / "fill", (disk / "fill").stat().st_size - 4096 * room)
    assert console(f"pool delete-session {disk}/pool s3")[0] == "delete-session: 1 session\n"
    assert len(_names(disk / "pool")) == 23 and secrets[3].encode() not in (disk / "pool/pool.sqlite").read_bytes()
    for n in (0, 1, 2, *range(4, 12)):
        console(f"pool delete-session {disk}/pool s{n}")
    assert _names(disk / "pool") == [f"s{n}" for n in range(12, 24)]
    assert sum(file.stat().st_blocks for file in disk.rglob("*")) < 4 * 2048, "and there is room again"
    with PoolWriter(disk / "pool") as pool:
        pool.store("new", episode(99, step(0), group_id=99), source="run")
        assert pool.episode("s20").steps[0].prompt_text == secrets[20]
    files = [file.read_bytes() for file in (disk / "pool").rglob("*") if file.is_file()]
    assert not any(secret.encode() in content for secret in secrets[:12] for content in files)
