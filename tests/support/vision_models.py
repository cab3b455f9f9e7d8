"""Tiny vision-language models with random weights, written to a folder as transformers writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
    PaddleOCRVLProcessor,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from envsuite.sokoban.practice import texts as sokoban_texts
from trainers.imitation.vocabulary import word_tokenizer

POSITIONED = ("qwen2_5_vl", "qwen3_vl", "qwen3_5")
"""Their images have positions of their own."""
NAMES = ("smolvlm", "idefics3", "llava", *POSITIONED)
IMAGE = "<image>"
AROUND = ("<fake_token_around_image>", "<global-img>", "<|vision_start|>", "<|vision_end|>", "<|video_pad|>")
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
_QWEN_TEMPLATE = PARTS_TEMPLATE.replace("<image>", f"{AROUND[2]}<image>{AROUND[3]}")
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
    if name.startswith("qwen"):
        return _qwen(name, text, vocabulary, image)
    kinds = {"smolvlm": (SmolVLMConfig, SmolVLMForConditionalGeneration),
             "idefics3": (Idefics3Config, Idefics3ForConditionalGeneration)}  # fmt: skip
    settings, made = kinds[name]
    config = settings(text_config=text.to_dict(), vision_config=seen, image_token_id=image, scale_factor=2,
                      tie_word_embeddings=False, initializer_range=0.2, **_IDS)  # fmt: skip
    return made(config).train(False)


def _qwen(name: str, text: LlamaConfig, vocabulary: int, image: int) -> PreTrainedModel:
    """A model whose images are 2 to 8 tokens of 16 x 16 pixels, in rows and columns."""
    words = {key: value for key, value in text.to_dict().items() if key not in ("model_type", "rope_parameters")}
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
    words |= {"rope_parameters": rope | ({} if name == "qwen2_5_vl" else {"mrope_interleaved": True})}
    if name == "qwen3_5":
        words |= {f"linear_num_{part}_heads": 2 for part in ("key", "value")}
        words |= dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "head_dim"), 8)
        words["layer_types"] = ["linear_attention", "full_attention"]
        words["rope_parameters"] |= {"partial_rotary_factor": 1.0}
    seen: dict[str, Any] = {"depth": 3, "hidden_size": 24, "num_heads": 2, "intermediate_size": 32,
                            "out_hidden_size": 32, "patch_size": 8, "spatial_merge_size": 2}  # fmt: skip
    if name == "qwen2_5_vl":
        seen |= {"fullatt_block_indexes": [1], "window_size": 32, "initializer_range": 0.2}
        kinds: Any = (Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration)
    else:
        seen |= {"num_position_embeddings": 64, "initializer_range": 0.2}
        seen |= {"deepstack_visual_indexes": [0, 1]} if name == "qwen3_vl" else {}
        kinds = {"qwen3_vl": (Qwen3VLConfig, Qwen3VLForConditionalGeneration),
                 "qwen3_5": (Qwen3_5Config, Qwen3_5ForConditionalGeneration)}[name]  # fmt: skip
    settings, made = kinds
    config = settings(text_config=words, vision_config=seen, image_token_id=image, video_token_id=vocabulary - 1,
                      vision_start_token_id=vocabulary - 3, vision_end_token_id=vocabulary - 2,
                      tie_word_embeddings=False, initializer_range=0.2)  # fmt: skip
    return made(config).train(False)


def save(name: str, folder: Path, parts: bool = True) -> Path:
    """Writes model, tokenizer and processor; returns the folder."""
    words = tokenizer(parts)
    if name in POSITIONED:
        words.chat_template = _QWEN_TEMPLATE
    image = words.convert_tokens_to_ids(IMAGE)
    assert isinstance(image, int)
    model(name, len(words), image).save_pretrained(folder)
    if name == "llava":
        square = {"height": 32, "width": 32}
        pixels = CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size=square)
        processor = LlavaProcessor(
            pixels, words, patch_size=8, vision_feature_select_strategy="default", num_additional_image_tokens=1
        )
    elif name in POSITIONED:
        # Qwen's own processors compute the same, but want torchvision for videos.
        words._set_model_specific_special_tokens({"image_token": IMAGE})
        pixels = Qwen2VLImageProcessorPil(patch_size=8, merge_size=2, min_pixels=512, max_pixels=2048)
        processor = PaddleOCRVLProcessor(pixels, words)
    else:
        edge = {"longest_edge": 32}
        pixels = Idefics3ImageProcessorPil(do_image_splitting=False, size=edge, max_image_size=edge)
        processor = Idefics3Processor(pixels, words, image_seq_len=4)
    processor.save_pretrained(folder)
    words.save_pretrained(folder)
    return folder
