"""Names that the blocks of a page use without making them: inputs of an equation, a server, a tokenizer."""

from __future__ import annotations

from families import QWEN3, tokenizer_of
from step_tables import table_of

from trainers.steps import StepTable

__all__ = ["METHODS", "QWEN3", "table", "tokenizer_of"]

UNITS = """
        from trainers.credit.estimators.comparison import units_of
        units = units_of(steps, "episode")
        returns, group, once, episode = units.returns, units.group, units.once, units.episode
    """
METHODS = {
    **dict.fromkeys(("beacon", "empg", "g2po", "gagpo", "graphgpo", "hcapo", "pgpo", "rewardflow"), ""),
    **dict.fromkeys(("oracle_mc", "tree_grpo"), ""),
    "bipace": """
        from trainers.credit.estimators.bipace import *
        from trainers.credit.estimators.bipace import PACE, SINGLETON
        cluster, key = method.clusters(steps), method.action_keys(steps)
        returns = discounted_returns(steps, gamma)
        stats, same = group_statistics(returns, cluster), group_codes(cluster, key)
        mean_of_cluster, size, alike = stats.mean, stats.size, np.bincount(same)[same]
        sum_alike = np.bincount(same, returns - stats.mean)[same]
        others = np.maximum(size - alike, 1e-9)
        branch = credit_q(returns, cluster, key)[1]
        size = np.where(size > 1, size, 2)
    """,
    "dr_grpo": "from trainers.credit.estimators.comparison import StateComparison",
    "gpg": UNITS
    + """
        from trainers.credit.estimators.groups import group_statistics
        counted = group_statistics(returns, group, samples=units.samples).std[once] > 0.0
        class centred: per_step = compare.episodes(steps)[0]
    """,
    "grpo": "from trainers.credit.estimators.comparison import StateComparison",
    "hgpo": """
        returns, (_, _) = discounted_returns(steps, gamma), method.levels(steps)
        weights = method.weights()
        order, lengths = steps_in_order(steps)
        at = {(steps.episode_id[row], steps.t[row]): row for row in range(len(steps))}
        def state_before(k):
            codes = {}
            rows = [at.get((steps.episode_id[row], steps.t[row] - k)) for row in range(len(steps))]
            return np.array([codes.setdefault(None if r is None else steps.state_key[r], len(codes)) for r in rows])
    """,
    "opd": "",
    "opo": UNITS,
    "ppo": """
        from trainers.credit.estimators.returns import generalised_advantages
        from trainers.credit.estimators.tokens import token_sequences
        value = method._value(steps)[token_sequences(steps, "episode").index]
    """,
    "reinforce_pp": "",
    "rft": "",
    "reinforce_pp_baseline": UNITS
    + """
        once_per_episode = np.zeros(len(returns), int); once_per_episode[once] = 1
    """,
    "remax": "from trainers.credit.estimators.returns import episode_returns",
    "rloo": UNITS
    + """
        from trainers.credit.estimators.groups import group_statistics
        size = group_statistics(returns, group, samples=units.samples).size
    """,
    "steppo": """
        import numpy as np
        from trainers.credit.estimators.returns import backward_sums, steps_in_order
        order, lengths = steps_in_order(steps)
        reward, value = steps.reward[order], method._value(steps)[order]
        last = np.cumsum(lengths) - 1
        following = np.append(value[1:], 0.0); following[last] = 0.0
    """,
    "gigpo": "",
    "hiper": """
        from trainers.steps.columns import BLOCKS
        v_high, v_low = (value.column(steps, "hiper") for value in method.values)
        reward, order = method.reward(steps), np.arange(len(steps))
        switch, probability = steps.extra["switch"], steps.extra["switch_probability"]
        starts, block, row = steps.extra["segment"], steps.token_extra["block"].values, steps.response.row_of
        acts = np.bincount(row[block == 3], minlength=len(steps)) > 0
        def normalise(values, has=None): return method._normalise(values, has)
    """,
    "vetta": "of_turn, of_token = method._read(steps)",
}
"""Code before the block of a method's page, which binds the symbols of its equation."""


def table() -> StepTable:
    """Two groups of four episodes, whose returns differ, that meet states several times."""
    rows = [
        (group, 10 * group + episode, t, float((episode + group) % 3 == 1) * (t == 3), "abca"[(t + episode) % 4], True)
        for group in range(2)
        for episode in range(4)
        for t in range(4)
    ]
    return table_of(rows, [1 + (3 * i) % 5 for i in range(len(rows))])
