"""Three tokenizers that differ as much as tokenizers do: bytes and merges, words, and pieces with blanks in them."""

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CHAT = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="session")
def words():
    """One token per word, sign or line end, and a chat template of its own."""
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n|\w+|[^\w\s]"), "removed", invert=True)
    control = [AddedToken(name, special=True) for name in ("<end>", "<system>", "<user>", "<assistant>")]
    tokenizer.add_special_tokens(control)
    vocabulary = (
        "you see a shelf door key lamp 1 2 3 go take look none Observation Action : . , \n < > / _ think action"
    )
    tokenizer.add_tokens([AddedToken(w, single_word=w.isalnum()) for w in vocabulary.split(" ")])
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", eos_token="<end>")
    wrapped.chat_template = CHAT
    return wrapped


@pytest.fixture(scope="session")
def pieces():
    """Merges over text whose blanks are marks, one put before the first word, as SentencePiece has it."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first", split=False)
    control = ["<unk>", "<end>", "<system>", "<user>", "<assistant>"]
    trainer = trainers.BpeTrainer(special_tokens=control, vocab_size=300, show_progress=False)
    tokenizer.train_from_iterator(
        ["Take the key.\n\nObservation: you see a shelf", "a door\nAction: go 1 2 3"] * 9, trainer
    )
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<end>")
    wrapped.add_special_tokens({"additional_special_tokens": control[2:]})
    wrapped.chat_template = CHAT
    return wrapped


@pytest.fixture(params=["smol", "words", "pieces"])
def tokenizer(request):
    return request.getfixturevalue(request.param)
