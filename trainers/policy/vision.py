"""Images in the policy's prompts: their tokens, and the embeddings that a frozen vision tower makes of them.

An image takes some places of a prompt, whose token ids are below -1 and say which part of which image stands there
(:mod:`envsuite.prompting.images`). So prompts are compared, merged and shared by their ids alone, as those of text are.
Where the model computes, embeddings of the parts take the place of the ids. The tower and its projection are frozen, so
that the same embeddings serve engine, trainer and reference, and are computed once.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProcessorMixin,
)

from envsuite.core.errors import DataError, UsageError
from envsuite.core.images import Pixels, digest
from envsuite.prompting.images import PARTS, images_of, part_id, parts_of
from trainers.policy.attention import attending, evaluating
from trainers.policy.precision import computing

_KEPT = 4096  # images whose embeddings are kept
_AT_A_TIME = 32  # images in one pass of the tower
_TOLERANCE, _ROUNDED = 1e-3, 5e-2  # of the largest value, with weights in float32 and in others
_FORMATS: weakref.WeakKeyDictionary[PreTrainedTokenizerBase, ImageProcessing] = weakref.WeakKeyDictionary()
_VISIONS: weakref.WeakKeyDictionary[PreTrainedModel, Vision] = weakref.WeakKeyDictionary()


def takes_images(settings: PreTrainedConfig) -> bool:
    """Whether a model of this configuration takes images, and is read as one that does."""
    kind = type(settings)
    return kind not in MODEL_FOR_CAUSAL_LM_MAPPING and kind in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING


def class_of(settings: PreTrainedConfig) -> Any:
    """Returns transformers' class that reads a model of this configuration, with its output layer."""
    return AutoModelForImageTextToText if takes_images(settings) else AutoModelForCausalLM


class ImageProcessing:
    """A model's processor: the tokens of an image, and the numbers that its vision tower takes.

    Args:
        processor: As transformers loads it.
        token: Id of the token in whose places the model puts an image.
    """

    def __init__(self, processor: ProcessorMixin, token: int) -> None:
        self.processor = processor
        self.token = token
        self._ids: dict[tuple[int, ...], tuple[int, ...]] = {}

    def ids(self, pixels: Pixels) -> tuple[int, ...]:
        """Returns the token ids of an image in a prompt, with those of its parts below -1."""
        if pixels.shape not in self._ids:
            own = self.tensors([pixels])["input_ids"][0].numpy()
            places = np.flatnonzero(own == self.token)
            if not 0 < len(places) < PARTS:
                raise DataError(f"an image of {pixels.shape[1]}x{pixels.shape[0]} pixels takes {len(places)} tokens")
            own[places] = [part_id(0, part) for part in range(len(places))]
            self._ids[pixels.shape] = tuple(own.tolist())
        return self._ids[pixels.shape]

    def tensors(self, images: Sequence[Pixels]) -> dict[str, Tensor]:
        """Returns token ids and pixel values of a row of images, as the model's own ``forward`` takes them."""
        from PIL import Image

        name: str = self.processor.image_token  # type: ignore[attr-defined]
        files = [Image.fromarray(image) for image in images]
        made: Any = self.processor(
            text=[name * len(files)], images=[files], add_special_tokens=False, return_tensors="pt"
        )
        return dict(made)


def set_format(tokenizer: PreTrainedTokenizerBase, processing: ImageProcessing) -> None:
    """Makes prompts of ``tokenizer`` take images."""
    _FORMATS[tokenizer] = processing


def format_of(tokenizer: Any) -> ImageProcessing | None:
    """Returns how prompts of ``tokenizer`` take images; ``None`` if they do not."""
    return _FORMATS.get(tokenizer)


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Writes the tokenizer, and the processor of images if there is one, as transformers does."""
    if (found := format_of(tokenizer)) is not None:
        found.processor.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


class Vision:
    """A model's embeddings of images, computed in the format of its weights.

    Args:
        model: Its vision tower and projection are frozen here.
        processing: Its processor.

    Raises:
        DataError: The model does not say which of its layers are those of text.
    """

    def __init__(self, model: PreTrainedModel, processing: ImageProcessing) -> None:
        self._model = weakref.ref(model)
        self.processing = processing
        self._kept: OrderedDict[bytes, Tensor] = OrderedDict()
        decoder = model.get_decoder()  # type: ignore[no-untyped-call]
        heads = [decoder, model.get_input_embeddings(), model.get_output_embeddings()]  # type: ignore[no-untyped-call]
        if decoder is model:
            raise DataError(f"{type(model).__name__} does not say which of its layers are those of text")
        text = {id(parameter) for head in heads if head is not None for parameter in head.parameters()}
        for parameter in model.parameters():
            if id(parameter) not in text:
                parameter.requires_grad_(False)

    def embeddings(self, images: Sequence[Pixels]) -> list[Tensor]:
        """Returns the embeddings of each image's parts, shape (parts, D), float32, on the model's device."""
        model = self._model()
        assert model is not None
        keys = [digest(image) for image in images]
        found = {key: self._kept[key] for key in keys if key in self._kept and self._kept[key].device == model.device}
        by_shape: dict[tuple[int, ...], dict[bytes, Pixels]] = {}
        for key, image in zip(keys, images, strict=True):
            if key not in found:
                by_shape.setdefault(image.shape, {})[key] = image
        for alike in by_shape.values():
            todo = list(alike.items())
            for begin in range(0, len(todo), _AT_A_TIME):
                some = todo[begin : begin + _AT_A_TIME]
                made = self._made(model, [image for _, image in some])
                found.update(zip((key for key, _ in some), made, strict=True))
        for key in keys:
            self._kept[key] = found[key]
            self._kept.move_to_end(key)
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return [found[key] for key in keys]

    @torch.no_grad()
    def _made(self, model: PreTrainedModel, images: Sequence[Pixels]) -> list[Tensor]:
        """Computes the embeddings of images of one size."""
        see: Any = model.get_image_features
        tensors = self.processing.tensors(images)
        given = {name: value.to(model.device) for name, value in _of_pixels(tensors).items()}
        with evaluating(model), computing("float32", model.device):
            output = see(**given).pooler_output
        parts = [output] if isinstance(output, Tensor) else list(output)
        made = torch.cat([part.reshape(-1, part.shape[-1]) for part in parts]).float()
        wanted = int((tensors["input_ids"] == self.processing.token).sum())
        if len(made) != wanted:
            raise DataError(f"{type(model).__name__} makes {len(made)} embeddings of images of {wanted} tokens")
        return [part.clone() for part in made.chunk(len(images))]


def set_vision(model: PreTrainedModel, processing: ImageProcessing) -> None:
    """Makes ``model`` take images."""
    _VISIONS[model] = Vision(model, processing)


def vision_of(model: PreTrainedModel) -> Vision | None:
    """Returns how ``model`` takes images; ``None`` if it does not."""
    return _VISIONS.get(model)


def model_inputs(model: PreTrainedModel, tokens: NDArray[np.int64], images: Sequence[Pixels] = ()) -> dict[str, Tensor]:
    """Returns the arguments of ``model`` for rows of tokens: their ids, or where images are among them embeddings.

    Args:
        model: The model, or its backbone.
        tokens: Token ids, shape (T,) or (rows, T).
        images: Those that ids below -1 are parts of.

    Raises:
        UsageError: There are images, and the model takes none.
    """
    shape, tokens = (-1, tokens.shape[-1]), tokens.ravel()
    image = images_of(tokens)
    places = np.flatnonzero(image >= 0)
    ids = torch.from_numpy(np.maximum(tokens, 0)).to(model.device)
    if not len(places):
        return {"input_ids": ids.view(shape)}
    vision = vision_of(model)
    if vision is None:
        raise UsageError(f"{type(model).__name__} takes no images; take a model that does, or show text alone")
    numbers = np.unique(image[places])
    made = vision.embeddings([images[number] for number in numbers.tolist()])
    starts = np.cumsum([0, *map(len, made)])[np.searchsorted(numbers, image[places])]
    chosen = torch.from_numpy(starts + parts_of(tokens)[places]).to(model.device)
    own: Tensor = model.get_input_embeddings()(ids)
    rows = torch.cat(made)[chosen].to(own.dtype)
    whole = own.index_copy(0, torch.from_numpy(places).to(model.device), rows)
    return {"inputs_embeds": whole.view(*shape, whole.shape[1])}


def _of_pixels(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns what a processor makes of an image besides numbers for each token."""
    return {name: value for name, value in tensors.items() if value.shape != tensors["input_ids"].shape}


def check_vision(model: PreTrainedModel) -> None:
    """Compares the model's logits of a prompt with an image to those that it computes by itself.

    Raises:
        DataError: They differ.
    """
    vision = vision_of(model)
    if vision is None:
        return
    pixels = np.random.default_rng(0).integers(0, 256, (32, 48, 3), np.uint8)
    tensors = vision.processing.tensors([pixels])
    text = np.arange(1, 6)
    tokens = np.concatenate([text, vision.processing.ids(pixels), text]).astype(np.int64)
    real = torch.from_numpy(np.where(tokens < 0, vision.processing.token, tokens)).to(model.device)[None]
    given = {name: value.to(model.device) for name, value in _of_pixels(tensors).items()}
    for name in tensors.keys() - given.keys() - {"input_ids", "attention_mask"}:  # kinds of tokens: 0 is text
        given[name] = torch.nn.functional.pad(tensors[name], (len(text), len(text))).to(model.device)
    rounded = any(parameter.dtype != torch.float32 for parameter in model.parameters())
    computed = computing("bfloat16" if rounded else "float32", model.device)
    with evaluating(model), computed, attending(model, "eager"):
        ours = model(**model_inputs(model, tokens, [pixels]), use_cache=False).logits
        own = model(input_ids=real, **given, use_cache=False).logits
    off = float((ours - own).abs().max() / own.abs().max())
    if not off <= (_ROUNDED if rounded else _TOLERANCE):
        raise DataError(
            f"{type(model).__name__} computes something else of an image than of its embeddings in a row (off by "
            f"{off:.2g} of the largest value in a short test): its images have positions or attention of their own; "
            "take a model such as SmolVLM, Idefics 3 or LLaVA"
        )
