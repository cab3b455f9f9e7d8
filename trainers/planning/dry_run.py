"""The trainer's own forward pass, backward pass and optimiser step on fake tensors, which have shapes and no memory.

Memory and operations are therefore those of the code that will run, whatever the architecture: nothing is computed by a
formula. Deep models of equal layers are run at two small depths, between which every amount grows linearly.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import DynamicCache, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicLayer, LinearAttentionLayer

from envsuite.core.errors import DataError
from trainers.planning.meter import Amounts, Meter
from trainers.policy import attention
from trainers.policy.adapter import add_adapter
from trainers.policy.attention import checkpoint_activations, evaluating
from trainers.policy.config import AdapterConfig, ComputeDtype, ModelConfig, OptimConfig
from trainers.policy.model import Policy
from trainers.policy.optimizer import make_optimizer
from trainers.policy.outline import exchange
from trainers.policy.precision import is_rounded
from trainers.policy.rows import rows_reason
from trainers.policy.sharding import local, shard_over, total_norm
from trainers.policy.statistics import OutputLayer
from trainers.policy.tree import TokenSequence, TokenTree, one_token, token_tree
from trainers.policy.vision import class_of

SHALLOW, SHARDED = 2, 4
"""Fewest layers of the smaller of the two models that stand for a deep one: of one that is whole in each process, and
of a sharded one, which gathers a layer while it computes another."""


@dataclass(frozen=True)
class DryRunRows:
    """The rows of a micro-batch: each a prompt of its own, and a response."""

    count: int
    prompt: int
    """Tokens of a prompt."""
    response: int
    """Tokens of a response."""

    @property
    def tokens(self) -> int:
        """Tokens of all rows."""
        return self.count * (self.prompt + self.response)

    def tree(self) -> TokenTree:
        """The micro-batch; its tokens are all the same."""
        tokens = np.zeros(self.prompt + self.response, np.int64)
        place = self.prompt - 1 + np.arange(self.response)
        row = [TokenSequence.of(tokens, place, number * self.response) for number in range(self.count)]
        return token_tree(row, share=False)


@dataclass(frozen=True)
class DryRunSizes:
    """Bytes that one process holds for as long as it runs, and counts of weights."""

    parameters: int
    """Number of weights of the whole model, without adapters."""
    trained: int
    """Number of weights that are trained, of all processes together."""
    weights: int
    """Bytes of all weights that this process holds."""
    gradients: int
    """Bytes of their gradients."""
    moments: int
    """Bytes of AdamW's moments."""
    rounded: int
    """Bytes of the linear layers' weights in bfloat16, which an engine makes in that compute format."""
    copied: int
    """Bytes of a whole copy in the compute format, which an engine has of a sharded policy."""
    read: int
    """Bytes of weights that one step of generation reads in the compute format."""
    keys: int
    """Numbers that the keys and values of a token are, in all layers."""
    states: int
    """Numbers that the states of recurrent layers and convolutions after a token are."""


@dataclass(frozen=True)
class DryRun:
    """One process of a run."""

    sizes: DryRunSizes
    stretches: tuple[Amounts, ...]
    """Amounts of each stretch of the update: until the embedding's backward pass, and from there on."""
    step: Amounts
    """The optimiser's step, clipping included."""
    scoring: Amounts
    """A pass without gradient over one micro-batch: log-probabilities of the reference, for example."""
    tokens: int
    """Tokens of a micro-batch."""

    @property
    def update(self) -> Amounts:
        """Forward and backward pass of one micro-batch, with the gradients of an earlier one there."""
        highest = max(self.stretches, key=lambda stretch: stretch.peak)
        names = ("products", "moved", "operations")
        sums = {name: sum(getattr(stretch, name) for stretch in self.stretches) for name in names}
        return replace(highest, kept=self.stretches[-1].kept, **sums)


class _Planned(Policy):
    """A policy of fake tensors: it has no values that could be checked."""

    def __init__(self, model: PreTrainedModel, temperature: float, compute_dtype: ComputeDtype) -> None:
        nn.Module.__init__(self)
        self.model, self.temperature, self.compute_dtype = model, temperature, compute_dtype
        self.output = _output_layer(model)


def _output_layer(model: PreTrainedModel) -> OutputLayer | None:
    """As ``selfcheck.output_layer``, which compares values; scaled logits are told by the configuration here."""
    layer, config = model.get_output_embeddings(), model.config.get_text_config(decoder=True).to_dict()  # type: ignore[no-untyped-call]
    scales = any(config.get(name) not in (None, 1, 1.0) for name in ("logit_scale", "logits_scaling"))
    return None if type(layer) is not nn.Linear or scales else OutputLayer(layer, config.get("final_logit_softcapping"))


@dataclass(frozen=True)
class MemoryTrial:
    """One process of a run, and the micro-batch that it computes."""

    shape: PreTrainedConfig
    """The model's configuration."""
    model: ModelConfig
    optim: OptimConfig
    ranks: int
    """Number of processes."""
    node: int
    """Processes of one machine."""
    rows: DryRunRows
    temperature: float = 1.0
    on_gpu: bool = False
    """Whether attention and the optimiser's step are computed by a GPU's kernels."""

    @property
    def is_sharded(self) -> bool:
        """Whether the policy is spread over the processes."""
        return self.model.shard != "none" and self.ranks > 1

    def run(self) -> DryRun:
        """Runs the whole model, or two shallow ones that stand for it."""
        layers = int(self.shape.get_text_config(decoder=True).num_hidden_layers)
        least = _least_depth(self.shape, SHARDED if self.is_sharded else SHALLOW)
        if layers > 2 * least:
            small, large = (replace(self, shape=_of_depth(self.shape, n))._run() for n in (least, 2 * least))
            times = (layers - least) / least
            few, more = small.sizes.parameters, large.sizes.parameters
            if round(few + times * (more - few)) == count_parameters(self.shape):
                return _extrapolate(small, large, times)
        return self._run()

    def _run(self) -> DryRun:
        model = self._model()
        fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
        kernels = _kernels_of_a_gpu() if self.on_gpu else nullcontext()
        with self._processes() as mesh, fake_mode, _one_group(), kernels, self._explain_errors():
            _as_fake(model)
            keys, states = _cache_sizes(model)
            policy = _Planned(model, self.temperature, self.model.compute_dtype).train()
            whole = _whole_sizes(policy.model, self.model.compute_dtype)
            trainable = sum(p.numel() for p in policy.parameters() if p.requires_grad)
            if mesh is not None:
                shard_over(policy, policy.model, mesh, self.model.compute_dtype)
                with torch.no_grad():
                    policy(one_token())
            own = [(local(p), p.requires_grad) for p in policy.parameters()]
            scoring = self._score(policy)
            optimizer = make_optimizer(policy.parameters(), replace(self.optim, state="float32"))
            for group in optimizer.param_groups:
                group.update(foreach=False, fused=self.on_gpu)
            _give_gradients(policy)
            optimizer.step()  # makes the moments
            _give_gradients(policy)
            marks, last = self._update(policy)
            step = self._step(policy, optimizer)
        sizes = DryRunSizes(
            **whole,
            trained=trainable,
            keys=keys,
            states=states,
            weights=sum(_bytes(p, self.model.adapter, trains) for p, trains in own),
            gradients=sum(p.numel() * p.element_size() for p, trains in own if trains),
            moments=sum(_moment_bytes(p, self.optim.state) for p, trains in own if trains),
        )
        return DryRun(sizes, (*marks, last), step, scoring, self.rows.tokens)

    def _model(self) -> PreTrainedModel:
        config = self.model
        frozen = config.adapter is not None and config.adapter.base != "float32"
        model = on_meta(self.shape, torch.bfloat16 if frozen else torch.float32)
        if config.adapter is not None:
            add_adapter(model, config.adapter, "base")
        if config.gradient_checkpointing is True:
            checkpoint_activations(model)
        return model

    @contextmanager
    def _explain_errors(self) -> Iterator[None]:
        try:
            yield
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise DataError(
                f"a model of type {self.shape.model_type} cannot be planned: how much its layers compute depends on "
                f"the values of its tensors ({error})"
            ) from None

    @contextmanager
    def _processes(self) -> Iterator[DeviceMesh | None]:
        """The mesh of the processes, of which this one is the first and the only one."""
        if not self.is_sharded:
            yield None
            return
        dist.init_process_group("fake", rank=0, world_size=self.ranks, store=FakeStore())
        try:
            if self.model.shard == "full":
                yield init_device_mesh("cpu", (self.ranks,))
            else:
                shape = (self.ranks // self.node, self.node)
                yield init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
        finally:
            dist.destroy_process_group()

    def _meter(self, policy: Policy) -> Meter:
        vocabulary = self.shape.get_text_config(decoder=True).vocab_size
        shapes = frozenset(tuple(p.shape) for p in policy.parameters() if p.dim() > 1)
        return Meter(vocabulary, shapes, self.rows.tokens)

    def _score(self, policy: Policy) -> Amounts:
        batch, meter = self.rows.tree(), self._meter(policy)
        with evaluating(policy), meter:
            policy(batch)
        return meter.amounts()

    def _update(self, policy: Policy) -> tuple[list[Amounts], Amounts]:
        batch, meter = self.rows.tree(), self._meter(policy)
        with meter:
            stats = policy(batch)
            loss = (stats.logprob + 0.001 * stats.entropy).sum()
            del stats
            loss.backward()
        return meter.marks, meter.amounts()

    def _step(self, policy: Policy, optimizer: torch.optim.Optimizer) -> Amounts:
        parameters = [p for p in policy.parameters() if p.grad is not None]
        with (meter := self._meter(policy)):
            norm = total_norm(p.grad for p in parameters if p.grad is not None)
            nn.utils.clip_grads_with_norm_(parameters, self.optim.max_grad_norm, norm)
            optimizer.step()
        return meter.amounts()


def _extrapolate(small: DryRun, large: DryRun, times: float) -> DryRun:
    def whole(name: str) -> int:
        a, b = float(getattr(small.sizes, name)), float(getattr(large.sizes, name))
        return round(a + times * (b - a))

    sizes = DryRunSizes(**{name: whole(name) for name in DryRunSizes.__dataclass_fields__})
    stretches = tuple(a.extrapolate(b, times) for a, b in zip(small.stretches, large.stretches, strict=True))
    step, scoring = small.step.extrapolate(large.step, times), small.scoring.extrapolate(large.scoring, times)
    return DryRun(sizes, stretches, step, scoring, small.tokens)


def _least_depth(shape: PreTrainedConfig, least: int) -> int:
    """The first multiple of the number of layers after which kinds of layers repeat that is at least ``least``."""
    kinds = list(shape.get_text_config(decoder=True).to_dict().get("layer_types") or ["full_attention"])
    period = next(n for n in range(1, len(kinds) + 1) if all(kinds[i] == kinds[i % n] for i in range(len(kinds))))
    return period * -(-least // period)


def _of_depth(shape: PreTrainedConfig, layers: int) -> PreTrainedConfig:
    shallow = deepcopy(shape)
    text = shallow.get_text_config(decoder=True)
    text.num_hidden_layers = layers
    if kinds := text.to_dict().get("layer_types"):
        text.layer_types = list(kinds)[:layers]
    return shallow


def on_meta(shape: PreTrainedConfig, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The model without memory."""
    with torch.device("meta"):
        model: PreTrainedModel = class_of(shape).from_config(deepcopy(shape), dtype=dtype)
    return model


def _as_fake(model: PreTrainedModel) -> None:
    """Moves a model from the meta device to the CPU, within a mode of fake tensors."""
    exchange(model, lambda p, _: nn.Parameter(torch.empty(p.shape, dtype=p.dtype), p.requires_grad))
    for module in model.modules():
        for name, buffer in [*module.named_buffers(recurse=False)]:
            setattr(module, name, torch.empty(buffer.shape, dtype=buffer.dtype))


@contextmanager
def _one_group() -> Iterator[None]:
    """Products of rows by their expert's matrix as products with one: as many, of the same shapes, in any format."""
    own = torch._grouped_mm
    torch._grouped_mm = lambda rows, experts, **_: rows @ experts[0]
    try:
        yield
    finally:
        torch._grouped_mm = own


@contextmanager
def _kernels_of_a_gpu() -> Iterator[None]:
    """Attention as a GPU computes it: in bfloat16 FlashAttention, where it can, elsewhere tiles."""
    own = attention._runs_flash, attention._is_fused
    attention._runs_flash = lambda device, dtype: dtype == torch.bfloat16
    attention._is_fused = lambda *_: False
    try:
        yield
    finally:
        attention._runs_flash, attention._is_fused = own


def _cache_sizes(model: PreTrainedModel) -> tuple[int, int]:
    """Numbers that generation keeps of a token: keys and values, and states after it.

    They are those of transformers' cache; of a model that is computed by rows keys and values of all layers.
    """
    if rows_reason(model) is not None:
        text = model.config.get_text_config(decoder=True)
        fields = text.to_dict()
        heads = fields.get("num_key_value_heads") or text.num_attention_heads
        width = fields.get("head_dim") or text.hidden_size // text.num_attention_heads
        return 2 * text.num_hidden_layers * heads * width, 0
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model.train(False).base_model(torch.zeros(1, 1, dtype=torch.long), past_key_values=cache, use_cache=True)
    keys = states = 0
    for layer in cache.layers:
        if isinstance(layer, DynamicLayer) and layer.keys is not None and layer.values is not None:
            keys += layer.keys.numel() + layer.values.numel()
        if isinstance(layer, LinearAttentionLayer):
            inputs = [state for state in layer.conv_states.values() if state is not None]
            states += sum(state[..., 1:].numel() for state in inputs)  # the first is not needed any more
            states += sum(state.numel() for state in layer.recurrent_states.values() if state is not None)
    return keys, states


def count_parameters(shape: PreTrainedConfig) -> int:
    """Number of weights of a model."""
    return sum(int(p.numel()) for p in on_meta(shape).parameters())


def _whole_sizes(model: PreTrainedModel, compute_dtype: str) -> dict[str, int]:
    """Sizes that do not depend on sharding."""
    own = [
        (p, compute_dtype == "bfloat16" and is_rounded(module, p), ".lora_" in f"{name}.{part}")
        for name, module in model.named_modules()
        for part, p in module.named_parameters(recurse=False, remove_duplicate=False)
    ]
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    single = {id(p): (p, rounds, lora) for p, rounds, lora in own}
    single |= {id(p): (p, rounds, lora) for p, rounds, lora in own if rounds}
    table: Tensor = model.get_input_embeddings().weight  # type: ignore[assignment]
    tied = head is not None and head.weight is table
    copy_bytes = sum(p.numel() * (2 if rounds else p.element_size()) for p, rounds, _ in single.values())
    rounded_bytes = sum(2 * p.numel() for p, rounds, _ in own if rounds)
    if tied and rounded_bytes:  # the embedding stays, and the output layer has a rounded one of its own
        copy_bytes += table.numel() * table.element_size()
    read = sum(p.numel() * (2 if rounds else p.element_size()) for p, rounds, _ in single.values() if p is not table)
    return {
        "parameters": sum(p.numel() for p, _, lora in single.values() if not lora),
        "rounded": rounded_bytes,
        "copied": copy_bytes,
        "read": read + (table.numel() * (2 if rounded_bytes else table.element_size()) if tied else 0),
    }


def _bytes(weight: Tensor, adapter: AdapterConfig | None, trains: bool) -> int:
    """Bytes of a weight; with nf4 a frozen matrix has four bits a weight, and 0.127 for its scales."""
    is_nf4 = adapter is not None and adapter.base == "nf4" and not trains and weight.dim() == 2
    return round(weight.numel() * (4.127 / 8 if is_nf4 else weight.element_size()))


def _moment_bytes(weight: Tensor, state: str) -> int:
    """Bytes of AdamW's two moments; in 8 bit, torchao gives each block of 256 a scale in float32."""
    blocks = state == "8bit" and weight.numel() >= 4096 and weight.numel() % 256 == 0
    return 2 * (weight.numel() + weight.numel() // 64) if blocks else 8 * weight.numel()


def _give_gradients(policy: Policy) -> None:
    for parameter in policy.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
