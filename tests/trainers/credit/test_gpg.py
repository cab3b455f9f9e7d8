import pytest
from hypothesis import given
from numpy.testing import assert_allclose, assert_array_equal
from step_tables import step_tables, table_of

from envsuite.core.errors import UnknownName
from trainers.credit.estimators.dr_grpo import DrGRPO
from trainers.credit.estimators.gpg import GPG
from trainers.steps import StepTable


@given(step_tables())
def test_gpg_is_the_centred_return_times_one_factor(table: StepTable):
    estimator = GPG()
    advantage, centred = estimator(table).per_step, DrGRPO()(table).per_step
    assert_allclose(advantage, centred * estimator.alpha(table), rtol=1e-12)
    assert_array_equal(GPG(scale="none")(table).per_step, centred)


def test_the_factor_makes_up_for_groups_without_a_signal():
    rows = [(g, 2 * g + i, 0, value, "a", True) for g, pair in enumerate([(0, 1), (1, 1), (0, 0)]) for i, value in
            enumerate(pair)]  # fmt: skip
    table = table_of(rows)
    assert GPG()(table).per_step.tolist() == [-1.5, 1.5, 0, 0, 0, 0]
    assert GPG(scale="nonzero").alpha(table) == 2.0
    assert GPG().alpha(table_of(rows[2:])) == 1.0, "no signal at all"
    with pytest.raises(UnknownName, match="GPG: unknown scale"):
        GPG(scale="all")
