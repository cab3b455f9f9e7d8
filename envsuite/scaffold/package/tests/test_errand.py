"""What every environment must do: python -m pytest tests."""

import pytest

from envsuite.testing import checks


@pytest.mark.parametrize("check", checks("Errand-v0"), ids=str)
def test_it_keeps_the_contract(check):
    """Plays the environment in every way in which training will."""
    check()
