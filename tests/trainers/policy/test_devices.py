"""What runs on a GPU mixes no devices and waits for it in few places: tried on a fake one (:mod:`fake_gpu`)."""

from __future__ import annotations

import pytest
from device_cases import CASES, Outcome, decoding, mixes, operations, run, transfers
from ranks import on_ranks

# Where the host may wait for the device, and nowhere else: once an update, an optimiser step or a sampled batch.
WAITS = {
    "accumulation.py:token_scores": "the log-probabilities and entropies of all rows",
    "policy_loss.py:read_scalars": "the losses, once an optimiser step; metrics, when the update is over",
    "guard.py:__call__": "the norm of the gradient, once an optimiser step",
    "guard.py:check_weights": "the norm of the weights, once an update",
    "sharding.py:rounds": "how many passes the processes make, once before them",
    "hidden.py:before_tokens": "the states of a micro-batch",
    "sampling.py:sample": "the tokens of a batch",
}


pytestmark = pytest.mark.seconds


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    (found,) = on_ranks(run, 1, list(CASES), timeout=600.0)
    return found


@pytest.mark.parametrize("name", CASES)
def test_everything_is_on_the_device_of_the_model(name, outcomes):
    assert outcomes[name].error is None, outcomes[name].error


@pytest.mark.parametrize("name", [name for name in CASES if "offloaded" not in name])
def test_the_host_waits_for_the_device_only_where_it_must(name, outcomes):
    assert not outcomes[name].waits.keys() - WAITS.keys()


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("update")])
def test_an_update_waits_twice_an_optimiser_step_however_many_micro_batches_there_are(name, outcomes):
    """Here of two steps, before which it needs the old log-probabilities of the rows of each."""
    assert sum(outcomes[name].waits.values()) <= 2 * 2 + 2 + 2, outcomes[name].waits
    assert not outcomes[name].copies


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("engine")])
def test_the_engine_waits_once_a_batch_of_which_there_are_eight(name, outcomes):
    assert outcomes[name].waits == {"sampling.py:sample": 8}
    assert not outcomes[name].copies


# Of a tree of 12,280 tokens. Attention by tiles, each call of PyTorch's kernel counted once, took 173, 667 and 192.
MOST = {"a layer, forward": 53, "a layer, with backward": 214, "the rest": 73}


def test_a_tree_takes_no_more_operations_than_it_did():
    (counts,) = on_ranks(operations, 1)
    print(f"\noperations on the device: {counts}")
    assert all(counts[name] <= most for name, most in MOST.items()), counts


# Of 64 responses in two groups. Weights in float32 rounded in the pass; 91, 45, 3 and 10 before counts were looked at.
MOST_DECODING = {"a layer": 69, "the rest": 41, "waits": 1, "copies": 0}


def test_a_decoding_step_takes_no_more_operations_and_waits_than_it_did():
    (counts,) = on_ranks(decoding, 1)
    print(f"\na step: {counts}")
    assert all(counts[name] <= most for name, most in MOST_DECODING.items()), counts


def test_the_fake_device_refuses_what_a_gpu_refuses():
    (found,) = on_ranks(mixes, 1)
    assert found["mixed"] is not None and "devices" in found["mixed"]
    assert found["numpy"] is not None and "on the device" in found["numpy"]
    assert found["bfloat16"] is not None and "no bfloat16" in found["bfloat16"]
    assert found["collective"] is not None and "of a tensor in main memory" in found["collective"]
    assert found["autocast"] == "torch.bfloat16"
    (counted,) = on_ranks(transfers, 1)
    assert counted == 3
