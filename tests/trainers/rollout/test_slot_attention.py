"""The two ways to attend agree, and so do their log-sums."""

from __future__ import annotations

import pytest
import torch

from trainers.rollout.slot_attention import Scores, attend


@pytest.mark.parametrize(("causal", "masked"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_the_fused_kernel_and_plain_arithmetic_agree(causal: bool, masked: bool, scale: float | None) -> None:
    random = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 3, 9, 16, generator=random) for _ in range(3))
    mask = torch.randn(2, 1, 9, 9, generator=random) if masked else None
    fused, fused_sums = attend(query, key, value, mask, Scores(scale), causal)
    # Values narrower than queries are not taken by the fused kernel.
    plain, plain_sums = attend(query, key, value[..., :15], mask, Scores(scale), causal)
    torch.testing.assert_close(fused[..., :15], plain)
    torch.testing.assert_close(fused_sums, plain_sums)
