from collections.abc import Mapping

import pytest

from envsuite.core.errors import UnknownName, UsageError
from trainers.policy.loss import ObjectiveConfig


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip_low": 1.5}, "clip_low is 1.5"),
        ({"clip_high": -0.1}, "clip_high is -0.1"),
        ({"dual_clip": 0.5}, "dual_clip is 0.5"),
        ({"dual_clip": 3.0, "loss": "cispo"}, "dual_clip belongs to loss 'ppo'"),
        ({"loss": "gpg", "ratio": "step"}, "loss 'gpg' is defined on token ratios"),
        ({"aggregation": "seq-mean-token-sum-norm"}, "divides by horizon, which is None"),
        ({"aggregation": "token-mean", "average": "episodes"}, "needs a seq-mean aggregation"),
        ({"kl_coef": -0.1, "kl": "k1"}, "kl_coef is -0.1"),
        ({"kl_coef": 0.1}, "kl is 'none'"),
        ({"cov_fraction": 0.0}, "cov_fraction is 0.0"),
        ({"cov_low": 5.0, "cov_high": 1.0}, "cov_low below cov_high"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(options: Mapping[str, object], message: str):
    with pytest.raises(UsageError, match=message):
        ObjectiveConfig(**options)


@pytest.mark.parametrize(
    ("options", "nearest"),
    [
        ({"loss": "pp0"}, "ppo"),
        ({"ratio": "tokens"}, "token"),
        ({"aggregation": "token_mean"}, "token-mean"),
        ({"average": "episode"}, "episodes"),
        ({"kl": "k4"}, "k"),
    ],
)
def test_a_word_that_is_no_choice_is_refused_with_the_nearest_one(options: Mapping[str, str], nearest: str):
    with pytest.raises(UnknownName, match=f"Nearest: '{nearest}"):
        ObjectiveConfig(**options)
