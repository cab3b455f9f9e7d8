"""Images in the policy's prompts: their tokens, and the embeddings that a frozen vision tower makes of them.

An image takes some places of a prompt, whose token ids are below -1 and say which part of which image stands there
(:mod:`envsuite.prompting.images`). So prompts are compared, merged and shared by their ids alone, as those of text are.
Where the model computes, embeddings of the parts take the place of the ids. The tower and its projection are frozen, so
that the same embeddings serve engine, trainer and reference, and are computed once. Where the projection is trained,
they are computed in every pass.

Some models (Qwen2-VL and later) give the parts of an image rows and columns as positions, and go on after the image
with the next number above those. Such positions of a token depend on its path alone, so that they hold in a tree, too.
Some (Qwen3-VL) also add features of the image to the states after the first layers.
"""

from __future__ import annotations

import re
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
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
from envsuite.prompting import TemplateRenderer
from envsuite.prompting.images import PARTS, images_of, part_id, parts_of, renumber_images
from trainers.policy.attention import attending, evaluating
from trainers.policy.precision import computing
from trainers.policy.transfer import to_device
from trainers.policy.tree import Ints

_KEPT, _KEPT_BYTES = 4096, 2**30  # most images whose embeddings are kept, and bytes of these
_AT_A_TIME = 32  # images in one pass of the tower
_OF_TOKENS = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids", "moe_mm_token_type_ids")
_PROJECTOR = re.compile(r"(^|\.)(multi_modal_projector|connector|(\w+_)?merger(_list)?)\.")
_TEXT = "\ue000"  # stands beside an image in a conversation that shows what a template writes around it
_TOLERANCE, _ROUNDED = 1e-3, 5e-2  # of the largest value, with weights in float32 and in others
_FORMATS: weakref.WeakKeyDictionary[PreTrainedTokenizerBase, ImageProcessing] = weakref.WeakKeyDictionary()
_VISIONS: weakref.WeakKeyDictionary[PreTrainedModel, Vision] = weakref.WeakKeyDictionary()


def takes_images(settings: PreTrainedConfig) -> bool:
    """Whether a model of this configuration takes images, and is read as one that does."""
    kind = type(settings)
    if kind not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING or kind not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return kind in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    seeing: Any = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING[kind]
    return settings.architectures == [seeing.__name__]


def choose_reading(settings: PreTrainedConfig, images: bool) -> None:
    """Has a model that transformers can read with its vision tower or without be read so."""
    kind = type(settings)
    if kind in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING and kind in MODEL_FOR_CAUSAL_LM_MAPPING:
        read: Any = (MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING if images else MODEL_FOR_CAUSAL_LM_MAPPING)[kind]
        settings.architectures = [read.__name__]


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
        self._text: str = processor.image_token  # type: ignore[attr-defined]
        text, tokenizer = {"type": "text", "text": _TEXT}, processor.tokenizer
        if tokenizer.chat_template is not None:  # it may write more than the image's token, such as control tokens
            message = {"role": "user", "content": [text, {"type": "image"}, text]}
            _, *between = (TemplateRenderer(tokenizer).attempt([message], None) or "").split(_TEXT)
            self._text = between[0].strip() if between and self._text in between[0] else self._text

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

        text, files = [self._text * len(images)], [[Image.fromarray(image) for image in images]]
        return dict(self.processor(text=text, images=files, add_special_tokens=False, return_tensors="pt"))


def set_format(tokenizer: PreTrainedTokenizerBase, processing: ImageProcessing) -> None:
    """Makes prompts of ``tokenizer`` take images."""
    _FORMATS[tokenizer] = processing


def format_of(tokenizer: Any) -> ImageProcessing | None:
    """Returns how prompts of ``tokenizer`` take images; ``None`` if they do not."""
    return _FORMATS.get(tokenizer)


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Writes the tokenizer, and the processor of images if there is one, as transformers does."""
    if (processing := format_of(tokenizer)) is not None:
        processing.processor.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


class Vision:
    """A model's embeddings of images, computed in the format of its weights.

    Args:
        model: Its vision tower is frozen here, and its projection unless that is trained.
        processing: Its processor.
        trained: Whether the projection is trained, itself or by an adapter.

    Raises:
        DataError: The model does not say which of its layers are those of text, or which are the projection.
    """

    def __init__(self, model: PreTrainedModel, processing: ImageProcessing, trained: bool = False) -> None:
        self._model = weakref.ref(model)
        self.processing = processing
        self.trained = trained
        self._kept: OrderedDict[bytes, Tensor] = OrderedDict()
        self._positions: dict[tuple[int, ...], Ints] = {}
        decoder = model.get_decoder()  # type: ignore[no-untyped-call]
        heads = [decoder, model.get_input_embeddings(), model.get_output_embeddings()]  # type: ignore[no-untyped-call]
        if decoder is model:
            raise DataError(f"{type(model).__name__} does not say which of its layers are those of text")
        text = {id(parameter) for head in heads if head is not None for parameter in head.parameters()}
        for name, parameter in model.named_parameters():
            if id(parameter) not in text and not (trained and _PROJECTOR.search(name)):
                parameter.requires_grad_(False)
        if trained and not any(_PROJECTOR.search(name) for name, _ in model.named_parameters()):
            raise DataError(f"{type(model).__name__} has no projector that is known; set model.images: frozen")

    def embeddings(self, images: Sequence[Pixels]) -> list[Tensor]:
        """Returns the embeddings of each image's parts, shape (parts, D), float32, on the model's device.

        Behind them, in the same rows, stand what the model adds to the states after its first layers, if it does.
        """
        model = self._whole()
        keys = [digest(image) for image in images]
        cache = self._kept if not self.trained else {}
        embeddings = {key: cache[key] for key in keys if key in cache and cache[key].device == model.device}
        by_shape: dict[tuple[int, ...], dict[bytes, Pixels]] = {}
        for key, image in zip(keys, images, strict=True):
            if key not in embeddings:
                by_shape.setdefault(image.shape, {})[key] = image
        for new_images in by_shape.values():
            todo = list(new_images.items())
            for begin in range(0, len(todo), _AT_A_TIME):
                batch = todo[begin : begin + _AT_A_TIME]
                tensors = self._embed_images(model, [image for _, image in batch])
                embeddings.update(zip((key for key, _ in batch), tensors, strict=True))
        for key in () if self.trained else keys:
            self._kept[key] = embeddings[key]
            self._kept.move_to_end(key)
        size = sum(tensor.nbytes for tensor in self._kept.values())
        while len(self._kept) > _KEPT or size > _KEPT_BYTES:
            size -= self._kept.popitem(last=False)[1].nbytes
        return [embeddings[key] for key in keys]

    def _embed_images(self, model: PreTrainedModel, images: Sequence[Pixels]) -> list[Tensor]:
        """Computes the embeddings of images of one size."""
        see: Any = model.get_image_features
        tensors = self.processing.tensors(images)
        arguments = {name: value.to(model.device) for name, value in _of_pixels(tensors).items()}
        learns = self.trained and torch.is_grad_enabled()
        precision = computing("bfloat16" if self.trained and _has_rounded_weights(model) else "float32", model.device)
        with evaluating(model), torch.set_grad_enabled(learns), precision:
            output = see(**arguments)
        features = torch.cat([_rows(part) for part in (output.pooler_output, *output.get("deepstack_features", ()))], 1)
        count = int((tensors["input_ids"] == self.processing.token).sum())
        if len(features) != count:
            raise DataError(f"{type(model).__name__} makes {len(features)} embeddings of images of {count} tokens")
        return [part.clone() for part in features.chunk(len(images))]

    @property
    def has_positions(self) -> bool:
        """Whether images have positions of their own."""
        return hasattr(self._whole().base_model, "get_rope_index")

    def positions(self, image: Pixels) -> Ints:
        """Returns positions of an image's parts, and of the token after them, counted from that of the first part.

        Shape (kinds of positions, parts + 1), for a model where :attr:`has_positions`.
        """
        if image.shape not in self._positions:
            index: Any = self._whole().base_model.get_rope_index
            tensors = self.processing.tensors([image])
            alike = tensors.keys() - _of_pixels(tensors).keys()
            tensors |= {name: torch.nn.functional.pad(tensors[name], (1, 1)) for name in alike}
            positions = index(**{**tensors, "attention_mask": None})[0][:, 0].numpy()
            places = np.flatnonzero(tensors["input_ids"][0].numpy() == self.processing.token)
            first, last = places[[0, -1]]
            self._positions[image.shape] = positions[:, first : last + 2] - positions[:, first - 1, None] - 1
        return self._positions[image.shape]

    def _whole(self) -> PreTrainedModel:
        model = self._model()
        assert model is not None
        return model


def set_vision(model: PreTrainedModel, processing: ImageProcessing, trained: bool = False) -> None:
    """Makes ``model`` take images, and freezes what computes them, but for its projection where that is trained."""
    _VISIONS[model] = Vision(model, processing, trained)


def vision_of(model: PreTrainedModel) -> Vision | None:
    """Returns how ``model`` takes images; ``None`` if it does not."""
    return _VISIONS.get(model)


def projector_layers(model: PreTrainedModel) -> list[str]:
    """Returns the full names of the linear layers of a projection of images that is trained."""
    vision = vision_of(model)
    linear = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    return [name for name in linear if _PROJECTOR.search(f"{name}.")] if vision is not None and vision.trained else []


def model_inputs(model: PreTrainedModel, tokens: Ints, images: Sequence[Pixels] = ()) -> dict[str, Any]:
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
    ids = to_device(np.maximum(tokens, 0), model.device)
    if not len(places):
        return {"input_ids": ids.view(shape)}
    vision = vision_of(model)
    if vision is None:
        raise UsageError(f"{type(model).__name__} takes no images; take a model that does, or show text alone")
    numbers = np.unique(image[places])
    embeddings = vision.embeddings([images[number] for number in numbers.tolist()])
    starts = np.cumsum([0, *map(len, embeddings)])[np.searchsorted(numbers, image[places])]
    indices = to_device(starts + parts_of(tokens)[places], model.device)
    own: Tensor = model.get_input_embeddings()(ids)
    where, rows = to_device(places, model.device), torch.cat(embeddings)[indices].to(own.dtype)
    whole = own.index_copy(0, where, rows[:, : own.shape[1]])
    if rows.shape[1] == own.shape[1]:
        return {"inputs_embeds": whole.view(*shape, whole.shape[1])}
    ids = ids.index_fill(0, where, vision.processing.token)
    is_image = ids == vision.processing.token  # also where the policy wrote this token, which adds nothing
    more = own.new_zeros(len(ids), rows.shape[1] - own.shape[1]).index_copy(0, where, rows[:, own.shape[1] :])[is_image]
    layers = more.split_with_sizes([own.shape[1]] * (more.shape[1] // own.shape[1]), 1)
    features = SimpleNamespace(pooler_output=[whole[is_image]], deepstack_features=[[part] for part in layers])
    return {"input_ids": ids.view(shape), "mm_encoder_outputs": {"image": features}}


def own_positions(
    model: PreTrainedModel, tokens: Ints, images: Sequence[Pixels], place: Ints | None = None, end: Ints | None = None
) -> Ints | None:
    """Returns the positions of tokens, shape (kinds of positions, rows, T), where images have some of their own.

    Args:
        model: The model, or its backbone.
        tokens: Token ids, shape (T,), which is one row, or (rows, T).
        images: Those that ids below -1 are parts of.
        place: Number of tokens before each on its path; by default in its row.
        end: Index after the last token whose path each is on, among those of all rows; by default the end of the row.
    """
    vision = vision_of(model)
    if vision is None or not vision.has_positions:
        return None
    places = np.flatnonzero(tokens < -1)
    if not len(places):
        return None
    ids = tokens.ravel()[places]
    numbers, which = np.unique(images_of(ids), return_inverse=True)
    own = [vision.positions(images[number]) for number in numbers.tolist()]
    parts = np.array([positions.shape[1] - 1 for positions in own])
    part, begin = parts_of(ids), np.cumsum(parts + 1) - parts - 1
    offsets = np.concatenate([positions - np.arange(positions.shape[1]) for positions in own], 1)
    number, length = np.arange(tokens.size), tokens.shape[-1]
    end = number - number % length + length if end is None else end
    all_positions = np.tile(number % length if place is None else place.ravel(), (len(offsets), 1))
    all_positions[:, places] += offsets[:, begin[which] + part]
    for last in np.flatnonzero(part == parts[which] - 1).tolist():
        after = places[last] + 1
        all_positions[:, after : end[after - 1]] += offsets[:, begin[which[last]] + part[last] + 1, None]
    return all_positions.reshape(len(all_positions), -1, length)


def _rows(features: Tensor | Sequence[Tensor]) -> Tensor:
    """Returns features of images, in one tensor or one for each, as (parts of all, D), float32."""
    several = [features] if isinstance(features, Tensor) else features
    return torch.cat([tensor.reshape(-1, tensor.shape[-1]) for tensor in several]).float()


def _has_rounded_weights(model: PreTrainedModel) -> bool:
    """Whether some weights are in another format than float32."""
    return any(parameter.dtype != torch.float32 for parameter in model.parameters())


def _of_pixels(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns what a processor makes of an image besides numbers for each token."""
    return {name: value for name, value in tensors.items() if name not in _OF_TOKENS}


def check_vision(model: PreTrainedModel) -> None:
    """Compares the model's logits of a prompt with an image to those that it computes by itself.

    Raises:
        DataError: They differ.
    """
    vision = vision_of(model)
    if vision is None:
        return
    images = list(np.random.default_rng(0).integers(0, 256, (2, 32, 48, 3), np.uint8))
    text, ids = np.arange(1, 6), np.array(vision.processing.ids(images[0]))
    tokens = np.concatenate([text, ids, text, renumber_images(ids, [1]), text]).astype(np.int64)
    real = torch.from_numpy(np.where(tokens < 0, vision.processing.token, tokens)).to(model.device)[None]
    arguments = {name: value.to(model.device) for name, value in _of_pixels(vision.processing.tensors(images)).items()}
    alone = vision.processing.tensors(images[:1])
    for name in alone.keys() - arguments.keys() - {"input_ids", "attention_mask"}:  # kinds of tokens: 0 is text
        kinds = torch.nn.functional.pad(alone[name], (len(text), 0)).repeat(1, 2)
        arguments[name] = torch.nn.functional.pad(kinds, (0, len(text))).to(model.device)
    inputs: dict[str, Any] = model_inputs(model, tokens, images)
    if (positions := own_positions(model, tokens, images)) is not None:
        inputs["position_ids"] = torch.from_numpy(positions).to(model.device)
    is_rounded = _has_rounded_weights(model)
    precision = computing("bfloat16" if is_rounded else "float32", model.device)
    with evaluating(model), precision, attending(model, "eager"):
        ours = model(**inputs, use_cache=False).logits
        own = model(input_ids=real, **arguments, use_cache=False).logits
    off = float((ours - own).abs().max() / own.abs().max())
    if not off <= (_ROUNDED if is_rounded else _TOLERANCE):
        raise DataError(
            f"{type(model).__name__} computes something else of an image than of its embeddings in a row (off by "
            f"{off:.2g} of the largest value in a short test): its images have positions or attention of their own; "
            "take a model such as SmolVLM, LLaVA or Qwen3-VL"
        )
