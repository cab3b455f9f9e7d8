"""The helper of all tests with several processes names the process that failed, not one that waited for it."""

import os
import time

import pytest
from ranks import on_ranks


def second_fails(accelerator, how):
    if accelerator.process_index == 0:
        time.sleep(600)
    if how == "dies":
        os._exit(3)
    raise ValueError("the cause")


@pytest.mark.parametrize(("how", "said"), [("raises", "the cause"), ("dies", "ended without a result")])
def test_the_process_that_failed_is_named_at_once(how, said):
    with pytest.raises(AssertionError, match=rf"(?s)process 1 of 2.*{said}"):
        on_ranks(second_fails, 2, how)
