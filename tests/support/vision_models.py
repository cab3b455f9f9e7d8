"""Tiny vision-language models with random weights, written to a folder as transformers writes them."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import (
    CLIPVisionConfig,
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    Idefics3ImageProcessorPil,
    Idefics3Processor,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from envsuite.sokoban.practice import texts as sokoban_texts
from trainers.imitation.vocabulary import word_tokenizer

NAMES = ("smolvlm", "idefics3", "llava")
IMAGE = "<image>"
AROUND = ("<fake_token_around_image>", "<global-img>")
PARTS_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}{% endfor %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""Takes contents as lists of parts alone, as the templates of such models often do."""
_SAID = """
The image shows the board: brick walls, red rings for targets, brown boxes that turn green on a target, and you, in
blue.
Tools: move. Commands: up | down
"""
_IDS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


def tokenizer(parts: bool = True) -> PreTrainedTokenizerFast:
    """Knows the words of Sokoban's texts, and what surrounds images; its template shows lists of parts, or texts."""
    made = word_tokenizer([*sokoban_texts(), _SAID], 512)
    made.add_tokens([IMAGE, *AROUND], special_tokens=True)
    if parts:
        made.chat_template = PARTS_TEMPLATE
    return made


def model(name: str, vocabulary: int, image: int, seed: int = 0) -> PreTrainedModel:
    """A model whose images are squares of 32 pixels: 16 patches, and 4 or 16 tokens."""
    torch.manual_seed(seed)
    text = LlamaConfig(
        vocab_size=vocabulary, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, initializer_range=0.2, **_IDS,
    )  # fmt: skip
    seen = {"hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    seen |= {"image_size": 32, "patch_size": 8, "initializer_range": 0.2}
    if name == "llava":
        vision = CLIPVisionConfig(**seen, projection_dim=24)
        config = LlavaConfig(
            vision_config=vision, text_config=text, image_token_index=image, vision_feature_layer=-1,
            vision_feature_select_strategy="default", initializer_range=0.2,
        )  # fmt: skip
        return LlavaForConditionalGeneration(config).train(False)
    kinds = {"smolvlm": (SmolVLMConfig, SmolVLMForConditionalGeneration),
             "idefics3": (Idefics3Config, Idefics3ForConditionalGeneration)}  # fmt: skip
    settings, made = kinds[name]
    config = settings(text_config=text.to_dict(), vision_config=seen, image_token_id=image, scale_factor=2,
                      tie_word_embeddings=False, initializer_range=0.2, **_IDS)  # fmt: skip
    return made(config).train(False)


def save(name: str, folder: Path, parts: bool = True) -> Path:
    """Writes model, tokenizer and processor; returns the folder."""
    words = tokenizer(parts)
    image = words.convert_tokens_to_ids(IMAGE)
    assert isinstance(image, int)
    model(name, len(words), image).save_pretrained(folder)
    if name == "llava":
        square = {"height": 32, "width": 32}
        pixels = CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size=square)
        processor = LlavaProcessor(
            pixels, words, patch_size=8, vision_feature_select_strategy="default", num_additional_image_tokens=1
        )
    else:
        edge = {"longest_edge": 32}
        pixels = Idefics3ImageProcessorPil(do_image_splitting=False, size=edge, max_image_size=edge)
        processor = Idefics3Processor(pixels, words, image_seq_len=4)
    processor.save_pretrained(folder)
    words.save_pretrained(folder)
    return folder
