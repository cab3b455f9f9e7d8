"""Episodes on disk."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from episodes import episode, step
from hypothesis import given, settings
from hypothesis import strategies as st
from played_episodes import episodes

from envsuite.core import ToolCall
from envsuite.core.errors import DataError, UsageError
from envsuite.playing.step import Episode
from trainers.steps import StepTable
from trainers.steps.parquet import SCHEMA, episode_files, read_episodes, read_table, shard_of, write_episodes

batches = st.lists(st.integers(0, 2**40), unique=True, max_size=4).flatmap(
    lambda ids: st.tuples(*(episodes(i) for i in ids)).map(list)
)


@pytest.mark.seconds
@given(batches)
@settings(max_examples=60, deadline=None)
def test_episodes_come_back_exactly_as_they_were_written(tmp_path_factory, batch):
    path = tmp_path_factory.mktemp("episodes") / "iteration-00001.parquet"
    write_episodes(path, batch)
    assert read_episodes(path) == batch


@pytest.fixture
def batch() -> list[Episode]:
    steps = [step(t, action=(ToolCall("craft", {"n": 1}),), info={"valid": True}) for t in range(2)]
    failed = [episode(1, steps[0], error="crashed"), episode(2, error="no reset")]
    return [episode(3, *steps), *failed, episode(0, steps[0])]


def test_an_advantage_array_is_in_the_row_order_of_the_step_table(tmp_path, batch):
    table = StepTable.from_episodes(batch)
    write_episodes(tmp_path / "x.parquet", batch, np.array([0.1, 0.2, 0.3]))
    rows = read_table(tmp_path / "x.parquet").select(["episode_id", "t", "advantage"]).to_pylist()
    kept = [row for row in rows if row["advantage"] is not None]
    assert [(row["episode_id"], row["t"]) for row in kept] == list(zip(table.episode_id, table.t, strict=True))
    assert [row["advantage"] for row in kept] == [0.1, 0.2, 0.3]


def test_the_shards_of_several_processes_are_read_as_one_file(tmp_path, batch):
    path = tmp_path / "iteration-00003.parquet"
    for number in range(3):
        write_episodes(shard_of(path, number, 3), batch[number::3], text={(3, 0): ("p", "r")})
    write_episodes(tmp_path / "eval-00000.parquet", batch)
    together = sorted(batch, key=lambda episode: episode.episode_id)
    found = read_episodes(path)
    assert [step.response_text for one in found for step in one.steps].count("r") == 1, "the text of an answer is kept"
    untold = [replace(one, steps=tuple(replace(step, response_text=None) for step in one.steps)) for one in found]
    assert untold == together
    assert sorted(read_table(path)["prompt_text"].to_pylist(), key=str) == [None, None, None, None, "p"]
    assert episode_files(tmp_path) == [tmp_path / "eval-00000.parquet", path]
    assert episode_files(tmp_path, "iteration-*") == [path]
    shard_of(path, 1, 3).unlink()
    with pytest.raises(DataError, match=r"iteration-00003\.1-of-3\.parquet: no such file"):
        read_episodes(path)


def test_text_that_is_not_unicode_is_written_and_does_not_stop_a_run(tmp_path, batch):
    path = tmp_path / "x.parquet"
    write_episodes(path, batch, text={(3, 0): ("nul \0 and \ud800", "\ufeff 日本 \U0001f600")})
    row = read_table(path).slice(0, 1).to_pylist()[0]
    assert (row["prompt_text"], row["response_text"]) == ("nul \0 and \ufffd", "\ufeff 日本 \U0001f600")


def test_any_parquet_reader_sees_typed_columns(tmp_path, batch):
    write_episodes(tmp_path / "x.parquet", batch)
    schema = pq.read_schema(tmp_path / "x.parquet")
    assert schema.names == SCHEMA.names
    assert schema.field("prompt_ids").type == pa.list_(pa.field("element", pa.int32()))
    assert schema.field("response_logprobs").type.value_type == pa.float32()
    assert schema.field("reward").type == pa.float64()


@given(st.data())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_a_damaged_file_raises_no_other_error(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("episodes") / "x.parquet"
    write_episodes(path, data.draw(batches))
    content = bytearray(path.read_bytes())
    for _ in range(3):
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    try:
        read_episodes(path)
    except DataError as error:
        assert "x.parquet" in str(error)


def test_a_truncated_file_a_foreign_one_and_a_missing_one_are_reported(tmp_path, batch):
    path = tmp_path / "iteration-00007.parquet"
    write_episodes(path, batch)
    content = path.read_bytes()
    for share in (0.0, 0.3, 0.99):
        path.write_bytes(content[: int(share * len(content))])
        with pytest.raises(DataError, match=r"iteration-00007\.parquet"):
            read_episodes(path)
    pq.write_table(pa.table({"weather": ["rain"]}), tmp_path / "other.parquet")
    with pytest.raises(DataError, match=r"other\.parquet.*not one of episodes.*weather"):
        read_episodes(tmp_path / "other.parquet")
    with pytest.raises(DataError, match=r"none\.parquet: no such file"):
        read_episodes(tmp_path / "none.parquet")


def test_a_disk_that_fills_leaves_the_old_file_and_no_litter(tmp_path, batch, monkeypatch):
    path = tmp_path / "x.parquet"
    write_episodes(path, batch[:1])

    def full(table: pa.Table, where: BinaryIO, **options: object) -> None:
        where.write(b"PAR1 half a file")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pq, "write_table", full)
    with pytest.raises(DataError, match=r"x\.parquet: cannot be written .*No space left"):
        write_episodes(path, batch)
    assert read_episodes(path) == batch[:1]
    assert [file.name for file in tmp_path.iterdir()] == ["x.parquet"]


def test_what_cannot_be_written_is_named(tmp_path, batch):
    with pytest.raises(UsageError, match="episode_id 3 occurs twice"):
        write_episodes(tmp_path / "x.parquet", [batch[0], batch[0]])
    with pytest.raises(UsageError, match=r"shape \(2,\).*have 3 steps"):
        write_episodes(tmp_path / "x.parquet", batch, np.zeros(2))
    batch[0].steps[1].info["world"] = object()
    with pytest.raises(UsageError, match="episode 3, step 1"):
        write_episodes(tmp_path / "x.parquet", batch)


def test_only_columns_that_repeat_are_written_with_a_dictionary(tmp_path, batch):
    path = tmp_path / "x.parquet"
    write_episodes(path, batch)
    written = pq.ParquetFile(path).metadata.row_group(0)
    columns = [written.column(number) for number in range(written.num_columns)]
    encodings = {column.path_in_schema.split(".")[0]: set(column.encodings) for column in columns}
    with_dictionary = {name for name, found in encodings.items() if "RLE_DICTIONARY" in found}
    assert {"task_id", "state_key", "policy_version"} <= with_dictionary
    assert not {"prompt_ids", "response_ids", "response_logprobs", "prompt_text", "reward"} & with_dictionary
    assert "BYTE_STREAM_SPLIT" in encodings["response_logprobs"]


def test_a_flipped_bit_in_the_tokens_is_noticed(tmp_path, batch):
    path = tmp_path / "x.parquet"
    random = np.random.default_rng(0).integers(0, 2**31, 20_000).astype(np.int32)  # nothing that compresses
    batch[0] = replace(batch[0], steps=(replace(batch[0].steps[0], prompt_ids=random),))
    write_episodes(path, batch)
    content = path.read_bytes()
    start = content.index(random[5_000:5_004].tobytes())
    for offset in range(0, 40_000, 8_000):
        damaged = bytearray(content)
        damaged[start + offset] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"x\.parquet"):
            read_episodes(path)
