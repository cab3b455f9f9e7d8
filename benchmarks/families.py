"""How each decoder family of the installed transformers is trained, by tiny models with random weights.

``python -m benchmarks.families`` prints a table and says what has changed since ``benchmarks/families.json``;
``--write`` renews that file, names restrict both to some families.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import socket
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor
from torch.multiprocessing.spawn import spawn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.utils.logging import set_verbosity_error

from envsuite.core.errors import EnvsuiteError
from envsuite.playing.engine import Sampling
from trainers.policy.adapter import add_adapter
from trainers.policy.attention import checkpoint_activations
from trainers.policy.config import AdapterConfig, ModelConfig
from trainers.policy.model import Policy
from trainers.policy.rows import rows_reason
from trainers.policy.tree import TokenSequence, TokenTree, one_token, token_tree
from trainers.processes.distributed import data_parallel, make_accelerator
from trainers.rollout.engine import EngineSetup
from trainers.rollout.plain_engine import PlainEngine

STATES = Path(__file__).with_suffix(".json")
VOCABULARY = 61
LAYERS = 2
MOST = 2_000_000  # weights of a tiny model
NEAR = 1e-4  # of log-probabilities in nats, and of gradients relative to the largest


def _all(names: str, value: Any) -> dict[str, Any]:
    return dict.fromkeys(names.split(), value)


_SIZES = {
    **_all("vocab_size text_vocab_size n_vocab vocab_size_per_layer_input", VOCABULARY),
    **_all(
        "hidden_size d_model n_embd n_embed dim embedding_size input_embedding_size dim_model attention_hidden_size", 32
    ),
    **_all("num_hidden_layers n_layer n_layers num_layers decoder_layers num_decoder_layers encoder_layers", LAYERS),
    **_all("num_blocks num_layers_per_stack", LAYERS),
    **_all("num_attention_heads n_head n_heads num_heads decoder_attention_heads num_decoder_attention_heads", 4),
    **_all("num_key_value_heads multi_query_group_num num_kv_heads", 2),
    **_all(
        "intermediate_size ffn_dim decoder_ffn_dim n_inner d_inner block_ff_dim ffn_hidden_size dim_ff ffn_dim_hidden",
        48,
    ),
    **_all("moe_intermediate_size shared_expert_intermediate_size expert_ffn_hidden_size mamba_ffn", 24),
    **_all("num_experts num_local_experts n_routed_experts moe_num_experts", 4),
    **_all("num_experts_per_tok moe_k num_experts_per_token moe_topk", 2),
    **_all("max_position_embeddings n_positions n_ctx max_seq_len context_length", 128),
    **_all("q_lora_rank kv_lora_rank o_lora_rank attention_hidden_size_lora", 16),
    **_all("qk_nope_head_dim qk_rope_head_dim v_head_dim linear_key_head_dim linear_value_head_dim linear_head_dim", 8),
    **_all("rotary_dim linear_num_heads zero_expert_num", 4),
    **_all("index_head_dim mamba_d_head mamba_head_dim mamba_headdim", 16),
    **_all("index_n_heads n_mamba_heads linear_num_key_heads", 2),
    **_all("linear_num_value_heads mamba_n_heads mamba_num_heads", 4),
    **_all("mamba_d_state state_size ssm_state_size", 8),
    **_all("mamba_n_groups n_groups mamba_ngroups", 1),
    "mamba_d_ssm": 64, "lru_width": 32, "n_group": 1, "topk_group": 1, "head_dim": 8, "qk_head_dim": 16,
    "initializer_range": 0.2, "init_std": 0.2, "sliding_window": 7, "is_decoder": True, "is_encoder_decoder": False,
    "use_cache": True, "tie_word_embeddings": False,
}  # fmt: skip
"""Values of a configuration's fields, where it has them."""
_SPECIAL: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "granitemoehybrid": {"num_hidden_layers": 2, "layer_types": ["mamba", "attention"]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2": {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]},
    "mamba2": {"hidden_size": 32, "num_heads": 4, "head_dim": 16},
    "qwen4_exp_text": {
        "indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 16, "indexer_budget": 8,
        "indexer_compress_ratio": 4, "head_dim": 8,
    },
    "recurrent_gemma": {"num_hidden_layers": 3},
    "reformer": {"axial_pos_embds": False},
    "xlstm": {"embedding_dim": 32, "hidden_size": 32},
    "xmod": {"default_language": "en_XX"},
    "zamba": {
        "num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "attention_hidden_size": 64,
        "attention_head_dim": 16, "num_key_value_heads": 4,
    },
    "zamba2": {
        "num_hidden_layers": 3, "layers_block_type": ["linear_attention", "hybrid", "linear_attention"],
        "mamba_headdim": 16, "n_mamba_heads": 4, "hybrid_layer_ids": [1], "attention_hidden_size": 64,
        "attention_head_dim": 16, "num_key_value_heads": 4,
    },
}  # fmt: skip


@dataclass
class Measured:
    """What of training works for a family: in each column ``yes``, or what is instead of it."""

    built: str = "yes"
    way: str = ""
    """``tree``, ``rows``, or why training refuses it."""
    reason: str = ""
    """Why it is computed by rows."""
    logprob: float = math.nan
    """Largest difference of log-probabilities to one sequence at a time, in nats."""
    gradient: float = math.nan
    """The same of gradients, relative to the largest."""
    engine: str = ""
    """The cache that the engine hf samples with: ``own``, ``padded``, ``alike`` or ``whole``."""
    sampled: float = math.nan
    """Largest difference of the engine's log-probabilities, in nats."""
    adapter: str = ""
    """With LoRA on all linear layers."""
    checkpointing: str = ""
    """With recomputed activations."""
    processes: str = ""
    """The gradient of two processes, which have half of the sequences each, beside that of one."""

    @property
    def state(self) -> str:
        """In words, one for each thing that works."""
        if self.way not in ("tree", "rows"):
            return "unbuilt" if not self.way else "refused" if self.way.startswith("refused") else "broken"
        engine = f"engine:{self.engine}" if self.sampled < NEAR else ""
        words = {"exact": max(self.logprob, self.gradient) < NEAR, engine: bool(engine), "lora": self.adapter == "yes"}
        words |= {"checkpointing": self.checkpointing == "yes", "processes": self.processes == "yes"}
        return " ".join([self.way, *(word for word, works in words.items() if works)])

    def row(self, name: str) -> str:
        """The family's row of the table."""
        cells = (
            name, self.built, self.way, self.reason, _figure(self.logprob), _figure(self.gradient), self.engine,
            _figure(self.sampled), self.adapter, self.checkpointing, self.processes,
        )  # fmt: skip
        return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _figure(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.0e}"


def families() -> dict[str, type[PreTrainedConfig]]:
    """Returns the configuration classes of all models with an output for the next token, by their names."""
    return {kind.model_type: kind for kind in MODEL_FOR_CAUSAL_LM_MAPPING}


def shrunk(name: str) -> PreTrainedConfig:
    """A configuration of a family with few and small layers, one of each kind at least."""
    special = _SPECIAL.get(name, {})
    config = AutoConfig.for_model(name, **special)
    text = config.get_text_config(decoder=True)
    if type(text) is type(config):
        text = config  # of an encoder and decoder it is a copy
    known = text.to_dict()
    depth = known.get("num_hidden_layers", 0)
    kinds = list(dict.fromkeys(known.get("layer_types") or ()))
    for field, value in known.items():
        whole = "num_hidden_layers" in special or field.endswith("token_id")
        if isinstance(value, list) and len(value) == depth and not whole:
            setattr(text, field, value[: max(len(kinds), LAYERS)])
    for field, value in {**_SIZES, **special}.items():
        if field in known or field in special or field in text.attribute_map:
            setattr(text, field, value)
    if "kv_lora_rank" in known and "num_key_value_heads" in known:
        text.num_key_value_heads = text.num_attention_heads
    if len(kinds) > 1:
        text.num_hidden_layers, text.layer_types = len(kinds), kinds
    elif kinds:
        text.layer_types = kinds * text.num_hidden_layers
    for field, value in known.items():
        if isinstance(value, float) and ("drop" in field or "jitter" in field):  # as they are loaded
            setattr(text, field, 0.0)
        if field.endswith("token_id") and value is not None:
            setattr(text, field, VOCABULARY - 1)
    return config


def built(name: str) -> PreTrainedModel:
    """A tiny model of a family with random weights, the same each time.

    Raises:
        ValueError: It is not tiny.
    """
    with torch.device("meta"):
        count = sum(p.numel() for p in AutoModelForCausalLM.from_config(shrunk(name)).parameters())
    if count > MOST:
        raise ValueError(f"{count:,} weights at these settings: it has parts besides its text")
    torch.manual_seed(7)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(shrunk(name), dtype=torch.float32)
    model(torch.arange(5)[None], use_cache=False)
    return model.train(False)


def some_tree() -> tuple[TokenTree, list[np.ndarray]]:
    """A tree of sequences that branch at random places, and the sequences; every token but the first is a target."""
    rng = np.random.default_rng(5)
    sequences = [rng.integers(0, VOCABULARY, 14)]
    for _ in range(6):
        before = sequences[rng.integers(len(sequences))]
        sequences.append(
            np.concatenate([before[: rng.integers(1, len(before))], rng.integers(0, VOCABULARY, rng.integers(3, 11))])
        )
    starts = np.cumsum([0, *(len(tokens) - 1 for tokens in sequences)])
    parts = [
        TokenSequence.of(tokens, np.arange(len(tokens) - 1), int(start))
        for tokens, start in zip(sequences, starts, strict=False)
    ]
    return token_tree(parts), sequences


def alone(model: PreTrainedModel, tokens: np.ndarray) -> Tensor:
    """Log-probability of each token but the first, by the model itself."""
    ids = torch.from_numpy(tokens).to(model.device)
    logits = model(ids[None], use_cache=False).logits[0, :-1].float()
    return logits.log_softmax(-1).gather(1, ids[1:, None])[:, 0]


def compared(policy: Policy) -> tuple[float, float]:
    """Largest differences of log-probabilities and gradients between the policy and one sequence at a time."""
    tree, sequences = some_tree()
    weight = torch.from_numpy(np.random.default_rng(6).normal(size=len(tree.index))).float()

    def gradients(logprob: Tensor) -> dict[str, Tensor]:
        policy.zero_grad()
        (logprob * weight).sum().backward()
        return {n: p.grad.clone() for n, p in policy.named_parameters() if p.grad is not None}

    policy.train()
    found = policy(tree).logprob
    ours = gradients(found)
    wanted = torch.cat([alone(policy.model, tokens) for tokens in sequences])
    theirs = gradients(wanted)
    scale = max(float(g.abs().max()) for g in theirs.values())
    zero = torch.zeros(())
    off = max(float((ours.get(n, zero) - theirs.get(n, zero)).abs().max()) for n in ours.keys() | theirs.keys())
    return float((found - wanted).abs().max()), off / scale


def two_processes(names: Sequence[str]) -> dict[str, str]:
    """Tries the families in two processes; those that did not come to an end are not among the answers."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        answers = Path(folder) / "answers"
        answers.touch()
        spawn(_process, (port, list(names), answers), nprocs=2)  # type: ignore[no-untyped-call]
        return dict(json.loads(line) for line in answers.read_text().splitlines())


def _process(rank: int, port: int, names: Sequence[str], answers: Path) -> None:
    """One of the two."""
    of_rank = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in of_rank.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "ACCELERATE_USE_CPU": "true"}
    _quiet()
    torch.set_num_threads(1)
    accelerator = make_accelerator()
    for name in names:
        answer = _tried(partial(_together, accelerator, name))
        if rank == 0:
            with answers.open("a") as file:
                file.write(json.dumps([name, answer]) + "\n")
    torch.distributed.destroy_process_group()


def _together(accelerator: Accelerator, name: str) -> str:
    policy = Policy(built(name)).train()
    tree, sequences = some_tree()
    weight = torch.from_numpy(np.random.default_rng(6).normal(size=len(tree.index))).float()
    (policy(tree).logprob * weight).sum().backward()
    wanted = {n: p.grad.clone() for n, p in policy.named_parameters() if p.grad is not None}
    policy.zero_grad()
    starts = np.cumsum([0, *(len(tokens) - 1 for tokens in sequences)])
    own = range(accelerator.process_index, len(sequences), 2)
    part = token_tree([TokenSequence.of(s := sequences[i], np.arange(len(s) - 1), int(starts[i])) for i in own])
    optimizer = torch.optim.SGD(policy.parameters())
    together, _ = data_parallel(accelerator, policy, optimizer, lambda: policy(one_token()).logprob)
    accelerator.backward((together(part).logprob * weight[part.index]).sum() * 2)
    zero = torch.zeros(())
    found = {n: p.grad for n, p in policy.named_parameters() if p.grad is not None}
    off = max(float((found.get(n, zero) - wanted.get(n, zero)).abs().max()) for n in found.keys() | wanted.keys())
    off /= max(float(g.abs().max()) for g in wanted.values())
    return "yes" if off < NEAR else f"gradients off by {off:.1e}"


def sampled(model: PreTrainedModel) -> tuple[str, float]:
    """The engine's way, and how far its log-probabilities are from the model's own."""
    engine = PlainEngine.from_setup(EngineSetup(model, None, ModelConfig(), 4))  # type: ignore[arg-type]
    rng, off = np.random.default_rng(8), 0.0
    prompts = [rng.integers(0, VOCABULARY - 1, length).tolist() for length in (11, 4, 9, 9, 17, 3)]
    for prompt, answer in zip(prompts, engine.generate(prompts, Sampling(max_tokens=7), seed=1), strict=True):
        with torch.no_grad():
            own = alone(model, np.array([*prompt, *answer.token_ids]))[len(prompt) - 1 :]
        off = max(off, float(np.abs(own.numpy() - answer.logprobs).max()))
    return engine.way if isinstance(engine, PlainEngine) else "own", off


def _tried(check: Callable[[], str]) -> str:
    """The outcome of ``check``, or the refusal in a line; any other error is named as such."""
    try:
        return check()
    except EnvsuiteError as error:
        return f"refused: {error}".partition("\n")[0]
    except Exception as error:  # a table of what works has to go on
        return f"ERROR {type(error).__name__}: {error}".partition("\n")[0][:160]


def measured(name: str) -> Measured:
    """Tries everything with a family."""
    found = Measured()
    try:
        built(name)
    except Exception as error:  # of transformers, at sizes that it was not made for
        return Measured(f"{type(error).__name__}: {error}".partition("\n")[0][:100])

    def way() -> str:
        policy = Policy(built(name))
        found.reason = rows_reason(policy.model) or ""
        found.logprob, found.gradient = compared(policy)
        return "rows" if found.reason else "tree"

    def exact(model: PreTrainedModel) -> str:
        differences = compared(Policy(model))
        return "yes" if max(differences) < NEAR else "off by {:.1e}, gradients {:.1e}".format(*differences)

    def engine() -> str:
        kind, found.sampled = sampled(built(name))
        return kind

    def adapter() -> str:
        model = built(name)
        add_adapter(model, AdapterConfig(rank=4), "base")
        torch.manual_seed(9)
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                if ".lora_B." in key:
                    parameter.normal_(std=0.1)
        return exact(model)

    def checkpointing() -> str:
        model = built(name)
        checkpoint_activations(model)
        return exact(model)

    found.way = _tried(way)
    if found.way in ("tree", "rows"):
        found.engine, found.adapter, found.checkpointing = _tried(engine), _tried(adapter), _tried(checkpointing)
    return found


def known_states() -> dict[str, str]:
    """Returns the state of each family that the file has."""
    groups: dict[str, str] = json.loads(STATES.read_text())
    return {name: state for state, names in groups.items() for name in names.split()}


def main(given: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="families; all by default")
    parser.add_argument("--write", action="store_true", help="renew the file of states")
    asked = parser.parse_args(given)
    _quiet()
    print("| family | built | trained by | why by rows | log-probabilities | gradients | engine hf | off | LoRA |"
          " checkpointing | two processes |\n" + "|---" * 11 + "|")  # fmt: skip
    known = known_states() if STATES.exists() else {}
    changed = {}
    names = asked.names or sorted(families())
    together = two_processes([name for name in names if known.get(name) not in ("unbuilt", "refused")])
    for name in names:
        found = measured(name)
        found.processes = together.get(name, "") if found.way in ("tree", "rows") else ""
        print(found.row(name), flush=True)
        if known.get(name) != found.state:
            changed[name] = found.state
    for name, state in changed.items():
        print(f"{name}: {known.get(name, 'new')} -> {state}")
    now = known | changed
    print(f"\n{len(now)} families:", ", ".join(f"{n} {word}" for word, n in counts(now).items()))
    if asked.write:
        groups = {state: " ".join(sorted(n for n in now if now[n] == state)) for state in sorted(set(now.values()))}
        STATES.write_text(json.dumps(groups, indent=2) + "\n")


def _quiet() -> None:
    warnings.filterwarnings("ignore")
    set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.getLogger("trainers").setLevel(logging.ERROR)


def counts(states: Mapping[str, str]) -> dict[str, int]:
    """Returns how many families are exact by tree and by rows, and how many are anything else."""
    kinds = [" ".join(state.split()[: 2 if " exact" in state else 1]) for state in states.values()]
    return dict(sorted(Counter(kinds).items()))


if __name__ == "__main__":
    main()
