"""Settings of the policy and of its optimiser."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from trainers.policy.loss.config import CorrectionConfig
from trainers.settings import AtLeastOne, ConfigError, Count, Decay, NotNegative, Positive, Text

Pooling = Literal["last", "mean"]
ComputeDtype = Literal["float32", "bfloat16"]
BaseFormat = Literal["float32", "bfloat16", "nf4"]
Images = Literal["auto", "frozen", "train-projector"]
Sharding = Literal["none", "full", "hybrid"]
AttentionKernel = Literal["sdpa", "flex", "flash_attention_2", "flash_attention_3"]


@dataclass(frozen=True)
class AdapterConfig:
    """Low-rank adapters (LoRA, Hu et al. 2022), which are trained in the place of the model's own weights."""

    rank: AtLeastOne = 32
    """Rank of the update of each layer."""
    alpha: AtLeastOne = 32
    """The update is scaled by alpha / rank."""
    targets: Literal["all-linear"] | list[Text] = "all-linear"
    """Names of the linear layers that are adapted, such as q_proj; ``all-linear`` is all but the output layer. Of a
    mixture also tensors of all experts, such as experts.down_proj, each of which has an update of this rank."""
    base: BaseFormat = "float32"
    """Format of the frozen weights. ``bfloat16`` takes half of the memory, ``nf4`` (QLoRA, Dettmers et al. 2023; needs
    CUDA and bitsandbytes) an eighth. Both are computed in bfloat16; the adapters are float32 always."""


@dataclass(frozen=True)
class ModelConfig:
    """The policy."""

    path: Text = "models/craft-1m"
    """A transformers causal language model with its tokenizer: a folder, a name on the Hugging Face hub, a GGUF file, a
    checkpoint of a run, the folder of a LoRA adapter, which names its base, or package:NAME/FILE, a folder or GGUF file
    in an installed Python package."""
    chat_template: Text | None = None
    """File with a chat template in place of the tokenizer's own, or the name of one of this package (smollm2): for a
    model whose own takes no tools, which prompt.codec native needs. Checkpoints and exports carry it."""
    compute_dtype: ComputeDtype = "float32"
    """Number format of forward passes: of policy, reference, critic and engine alike. Weights that are trained, their
    gradients and optimiser state are float32 always."""
    attention: AttentionKernel = "sdpa"
    """Kernel of the trainer's attention: PyTorch's own (``sdpa``; on a GPU in bfloat16 its FlashAttention),
    FlexAttention, or FlashAttention 2 or 3 where these are installed; the others need CUDA and ``compute_dtype:
    bfloat16``. Engines have their own."""
    rows: Literal["auto", "always"] = "auto"
    """Whether each row of a batch is computed by itself, or what rows begin with alike is computed once. ``auto``: by
    itself only where the model cannot do the other, for example for ALiBi or Mamba-1."""
    routing: Literal["own", "replay"] = "own"
    """Experts of a mixture's tokens in the trainer: those that its routers choose (``own``), or those that each token
    went to when the engine sampled (``replay``; Rollout Routing Replay, Ma et al. 2025), with weights from the
    trainer's routers. Needs the engine hf."""
    balance_coef: NotNegative | None = None
    """Coefficient of a mixture's balance loss, which transformers adds in pretraining: number of experts times the sum
    over them of the share of tokens that took each when the engine sampled, times its mean probability; over the tokens
    of all rows of an optimiser step. Null: the model's ``router_aux_loss_coef`` where its configuration says
    ``output_router_logits: true``, else 0. Needs the engine hf."""
    gradient_checkpointing: Literal["auto"] | bool = "auto"
    """Recompute activations in the backward pass: less memory, more time, the same numbers. ``auto``: on GPUs where the
    run's plan does not fit without, on a CPU never."""
    shard: Sharding = "none"
    """With several processes, spreads weights, gradients and the optimiser's state over all of them (``full``), or over
    those of each machine, with a copy on every machine (``hybrid``). ``none``: all of it in each process."""
    offload: bool = False
    """With ``shard``: each process keeps its part of weights, gradients and optimiser's state in main memory (FSDP2's
    ``CPUOffloadPolicy``); layers come to the device as they compute, and the optimiser's step is made by the CPU."""
    images: Images = "auto"
    """``auto`` reads a model that can be read for text alone (Qwen3.5) so; ``frozen``, with its vision tower, which is
    never trained. ``train-projector`` also trains a model's projection of images to embeddings, with ``adapter`` by one
    on its linear layers; the tower then computes each image anew in every pass."""
    adapter: AdapterConfig | None = None
    """Trains an adapter, and freezes the model; null trains the model itself (an adapter that ``path`` names is merged
    into it)."""

    def __post_init__(self) -> None:
        if self.offload and (self.shard == "none" or self.adapter is not None):
            what = "shard is none" if self.shard == "none" else "an adapter is trained, which is merged on the device"
            raise ConfigError(f"model: offload keeps a sharded model in main memory, but {what}; set offload: false")
        if self.attention != "sdpa" and self.compute_dtype == "float32":
            raise ConfigError(
                f"model: attention is {self.attention}, which computes in bfloat16, but compute_dtype is float32; set "
                "compute_dtype: bfloat16, or attention: sdpa"
            )
        if self.adapter is not None and self.adapter.base != "float32" and self.compute_dtype == "float32":
            raise ConfigError(
                f"model: adapter.base is {self.adapter.base}, which is computed in bfloat16, but compute_dtype is "
                "float32; set compute_dtype: bfloat16, or base: float32"
            )
        if self.adapter is not None and self.adapter.base == "nf4" and self.shard != "none":
            raise ConfigError(
                f"model: adapter.base is nf4, whose packed weights cannot be sharded, but shard is {self.shard}; set "
                "shard: none, or base: bfloat16"
            )

    @property
    def sees(self) -> bool:
        """Whether a model that could also be read for text alone has its vision tower."""
        return self.images != "auto"


@dataclass(frozen=True)
class OptimConfig:
    """The optimiser."""

    lr: Positive = 1e-6
    """Peak learning rate."""
    weight_decay: NotNegative = 0.0
    """AdamW's weight decay."""
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    """AdamW's moments."""
    state: Literal["float32", "8bit"] = "float32"
    """Format of the policy's moments. ``8bit`` (Dettmers et al. 2022; the package torchao) takes two bytes a weight
    instead of eight, and compiles its step when it is first taken."""
    warmup: Count = 0
    """Optimiser steps of linear warm-up."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Schedule of the learning rate after the warm-up; linear and cosine end at a tenth of the peak when the last
    iteration does, however many optimiser steps the iterations take."""
    max_grad_norm: Positive = 1.0
    """Gradients are scaled down to this norm."""
    epochs: AtLeastOne = 1
    """Passes over the episodes of an iteration."""
    minibatches: AtLeastOne = 1
    """Optimiser steps per pass: the episodes of all processes are cut into so many parts of equally many steps."""
    minibatch_rows: AtLeastOne | None = None
    """Most environment steps per optimiser step, over all processes, to the nearest whole episode (the papers' 256 and
    64); the number of minibatches follows from it. By default ``minibatches`` says how many there are."""
    tokens_per_microbatch: AtLeastOne = 16384
    """Most tokens that one forward pass computes; bounds memory, changes no result."""
    old_logprobs: Literal["auto", "engine", "trainer"] = "auto"
    """Old log-probabilities of the importance ratio: those that the engine gave when it sampled, or those that the
    trainer computes before the first optimiser step of an update. ``auto`` takes the engine's where both
    compute alike (engine hf, in float32, without ``rollout.staleness``), and the trainer's elsewhere: the noise of
    bfloat16 is wider than the clip range of ratios of whole steps, and an update is to stay near the weights that it
    starts from, not near older ones. Replayed episodes keep the engine's."""
    correction: CorrectionConfig | None = field(default_factory=CorrectionConfig)
    """With the trainer's old log-probabilities, the difference to the engine's is corrected by importance weights,
    that of older weights (``rollout.staleness``) too; null does not correct."""

    def __post_init__(self) -> None:
        if self.minibatch_rows is not None and self.minibatches != 1:
            raise ConfigError(
                f"optim: minibatches is {self.minibatches} and minibatch_rows {self.minibatch_rows}; each says how "
                "large a minibatch is: leave one out"
            )

    @property
    def is_one_step(self) -> bool:
        """Whether an update takes one optimiser step, however many rows it has."""
        return self.epochs == self.minibatches == 1 and self.minibatch_rows is None

    def recomputes(self, dtype: str, engine: str, staleness: int = 0) -> bool:
        """Whether the trainer computes the old log-probabilities.

        Args:
            dtype: Number format of the model's forward passes.
            engine: Name of the engine.
            staleness: Updates by which the weights that sampled may be older.
        """
        if self.old_logprobs == "auto":
            return engine != "hf" or dtype != "float32" or staleness > 0
        return self.old_logprobs == "trainer"
