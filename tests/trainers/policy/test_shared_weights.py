"""Weights that go to another process through memory."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from trainers.run.asynchronous.weights import SharedWeights, StaleWeights, read_weights


@given(
    st.dictionaries(st.text(min_size=1), arrays(np.float32, array_shapes(min_dims=0)), max_size=4),
    st.booleans(),
    st.integers(0, 2**40),
)
def test_weights_arrive_as_they_were_sent(weights: dict[str, np.ndarray], rounded: bool, version: int) -> None:
    weights.pop("__metadata__", None)
    dtype = torch.bfloat16 if rounded else torch.float32
    sent = {name: torch.from_numpy(array).to(dtype) for name, array in weights.items()}
    shared = SharedWeights(sent.items(), version)
    found = read_weights(shared.note)
    shared.close()
    assert found.keys() == sent.keys()
    for name, tensor in sent.items():
        assert found[name].dtype == dtype and found[name].shape == tensor.shape
        assert found[name].reshape(-1).view(torch.uint8).equal(tensor.reshape(-1).view(torch.uint8)), "every bit"


def test_weights_of_another_version_torn_ones_and_changed_ones_are_noticed() -> None:
    shared = SharedWeights([("a", torch.zeros(64))], 3)
    note = shared.note
    with pytest.raises(StaleWeights, match="weights of version 4 are stale: the file has those of version 3"):
        read_weights(replace(note, version=4))
    with open(note.path, "r+b") as file:
        file.seek(note.size - 1)
        file.write(b"\x01")
    with pytest.raises(StaleWeights, match="the weights of version 3 are torn"):
        read_weights(note)
    os.truncate(note.path, note.size // 2)
    with pytest.raises(StaleWeights, match="the weights of version 3 are torn"):
        read_weights(note)
    shared.close()
    with pytest.raises(StaleWeights, match="the weights of version 3 cannot be read"):
        read_weights(note)
