"""Checks that a model computes the same in a token tree, or in rows, as one sequence at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from envsuite.core.errors import DataError
from trainers.policy.attention import NAME, attending, evaluating, narrow_windows
from trainers.policy.flat import FlatBatch, flatten
from trainers.policy.kernels import kernel_of
from trainers.policy.precision import computing, float32_weights
from trainers.policy.routing import routers, routing
from trainers.policy.rows import rows_reason, use_rows
from trainers.policy.statistics import OutputLayer
from trainers.policy.transfer import to_device
from trainers.policy.tree import Ints, TokenSequence, TokenTree, token_tree
from trainers.policy.walk import CachedPast, KeysValues
from trainers.processes.memory import ran_out

_WINDOW = 5  # sliding window of the check, in tokens
_TOLERANCE = 1e-4  # of the largest value; float32 differs by 1e-5
_NOISE = 10.0  # times what rounding alone changes in the model by itself, where that is more
_QUANTISED = 5e-2  # quantised layers compute in bfloat16
_ROUNDED = 0.1  # kernels that compute in bfloat16, and the layers around them
FAILURES = (DataError, TypeError, ValueError, RuntimeError, LookupError, AttributeError, AssertionError)
"""Errors of a model that is called in a way that it was not written for."""


def check_policy(model: PreTrainedModel) -> None:
    """Compares the logits in a tree with those of sequences alone; where they differ, the model is computed by rows.

    Raises:
        DataError: Those of rows differ, too.
    """

    def alone(tokens: Tensor) -> Tensor:
        logits: Tensor = model(tokens, use_cache=False).logits[0]
        return logits

    _check(model, lambda flat: flat.logits(model), alone)


def output_layer(model: PreTrainedModel) -> OutputLayer | None:
    """Returns the output layer, if the logits are a linear function of the last hidden states, bounded or not.

    ``None`` where they are anything else (scaled, an adapted or quantised layer): the model then computes them whole.
    """
    layer = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    config = model.config.get_text_config(decoder=True)
    if type(layer) is not torch.nn.Linear:
        return None
    head = OutputLayer(layer, getattr(config, "final_logit_softcapping", None))
    tokens = torch.arange(_WINDOW, device=model.device)[None] % config.vocab_size
    with evaluating(model), computing("float32", model.device), float32_weights(model):
        own: Tensor = model(tokens, use_cache=False).logits
        try:
            ours = head.logits(model.base_model(tokens, use_cache=False).last_hidden_state)
        except FAILURES:  # what is below the output layer is not all of the model
            return None
    return head if bool((ours - own).abs().max() <= _TOLERANCE * own.abs().max()) else None


def check_backbone(model: PreTrainedModel) -> None:
    """Compares hidden states as :func:`check_policy` does logits, for a model without output layer.

    Raises:
        DataError: Those of rows differ, too.
    """

    def tree_states(flat: FlatBatch) -> Tensor:
        return flat.states(model(**flat.arguments).last_hidden_state)[flat.place]

    def alone(tokens: Tensor) -> Tensor:
        states: Tensor = model(tokens, use_cache=False).last_hidden_state[0]
        return states

    _check(model, tree_states, alone)


def _check(model: PreTrainedModel, packed: Callable[[FlatBatch], Tensor], alone: Callable[[Tensor], Tensor]) -> None:
    """Compares in float32, to tell a wrong mask from rounding; the sequences go past any sliding window."""
    tree, sequences = sample_tree(model.config.get_text_config(decoder=True).vocab_size)
    kind, own_attention = type(model).__name__, model.config.get_text_config(decoder=True)._attn_implementation
    rows_reason(model)  # before the first pass: it keeps libraries of recurrent layers from float32, which they refuse

    def singly(attention: str) -> Tensor:
        with attending(model, attention):
            return torch.cat([alone(to_device(tokens, model.device)[None])[:-1] for tokens in sequences]).float()

    def together(attention: str, past: CachedPast | None = None) -> Tensor:
        with attending(model, attention):
            return packed(flatten(tree, model, past=past)).float()

    with evaluating(model), narrow_windows(model, _WINDOW):
        with computing("float32", model.device), float32_weights(model):
            try:
                own = singly("eager")
            except FAILURES as error:
                raise DataError(f"{kind} cannot be trained: {_describe_error(error)}") from error
            if not bool(torch.isfinite(own).all()):
                raise DataError(
                    f"{kind}: its weights give values that are not finite; where a run diverged, take an earlier "
                    "checkpoint"
                )

            def off(values: Tensor) -> float:
                return float((values - own).abs().max() / own.abs().max())

            whole = all(p.is_floating_point() for p in model.parameters())

            def differs(attention: str) -> str | None:
                """Says how both ways differ, if they do."""
                past = _CallCheck()
                try:
                    deviation = off(together(attention, past))
                except FAILURES as error:
                    return _describe_error(error)
                if past.again:
                    return "a layer attends more than once, to keys that are not the same"
                near = _TOLERANCE if whole else _QUANTISED
                if deviation <= near or deviation <= min(_NOISE * off(singly(own_attention)), 10 * near):
                    return None
                return f"off by {deviation:.2g} of the largest value in a short test"

            if rows_reason(model) is None and (reason := differs(NAME)) is not None:
                use_rows(model, f"it computes something else in a tree of tokens than in separate sequences ({reason})")
            if rows_reason(model) is not None:
                if (reason := differs(own_attention)) is not None:
                    raise DataError(
                        f"{kind} computes something else in padded rows than in separate sequences ({reason}); "
                        "where its tokens see later ones, take a causal language model"
                    )
                return
        if (kernel := kernel_of(model)) != NAME:
            with computing("bfloat16", model.device):
                deviation = off(together(kernel))
            if not deviation <= _ROUNDED:
                raise DataError(
                    f"{kind} computes something else with the kernel of model.attention than by itself (off by "
                    f"{deviation:.2g} of the largest value in a short test); set it to sdpa"
                )


class _CallCheck(CachedPast):
    """Tells whether a layer attends more than once in a pass, which :mod:`trainers.policy.walk` cannot follow."""

    again = False

    def join(self, layer: int, key: Tensor, value: Tensor) -> KeysValues:
        """Returns the keys and values as they are."""
        self.again |= layer in self.made
        return super().join(layer, key, value)


def _describe_error(error: Exception) -> str:
    """The first line of an error of transformers' code; lack of memory is raised again."""
    if ran_out(error):
        raise error
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"


def sample_tree(vocabulary: int) -> tuple[TokenTree, list[Ints]]:
    """A small tree that branches twice, and the sequences in it; all but the first token of each are targets."""
    rng = np.random.default_rng(0)

    def random_tokens(count: int) -> Ints:
        return rng.integers(0, vocabulary, count)

    first, other_start = random_tokens(9), random_tokens(6)
    second = np.concatenate([first, random_tokens(5)])
    sequences = [np.concatenate([before, random_tokens(after)])
                 for before, after in ((first, 4), (second, 3), (second, 8), (other_start, 7))]  # fmt: skip
    starts = np.cumsum([0, *(len(tokens) - 1 for tokens in sequences)])
    parts = [TokenSequence.of(tokens, np.arange(len(tokens) - 1), int(start))
             for tokens, start in zip(sequences, starts[:-1], strict=True)]  # fmt: skip
    return token_tree(parts), sequences


def check_replay(model: PreTrainedModel) -> None:
    """Tries to set the experts of each token, as :func:`~trainers.policy.routing.routing` then can.

    Raises:
        DataError: The model has no routers, or they take no other experts than those that they choose.
    """
    kind, size = type(model).__name__, model.config.get_text_config(decoder=True).vocab_size
    tokens = torch.arange(9, device=model.device)[None] % size
    choices: list[tuple[Tensor, Tensor]] = []

    def note(_: torch.nn.Module, __: object, output: tuple[Tensor, ...]) -> None:
        choices.append((output[1], output[2]))

    with evaluating(model):
        with routing(model) as own:
            model(tokens, use_cache=False)
        if (experts := own.experts(model)) is None:
            what = "has routers that do not tell their experts" if routers(model) else "is no mixture of experts"
            raise DataError(f"model.routing is replay, but {kind} {what}; set it to own")
        widths = torch.tensor(own.widths, device=model.device)[:, None]
        other_experts = (experts.long() + widths // 2) % widths
        hooks = [router.register_forward_hook(note) for router in routers(model)]
        try:
            with routing(model, other_experts.to(experts.dtype)):
                model(tokens, use_cache=False)
        finally:
            for hook in hooks:
                hook.remove()
    same = (torch.equal(indices.flatten(0, -2), other_experts[:, n]) for n, (_, indices) in enumerate(choices))
    if not all(same) or not all(bool(weight.all()) for weight, _ in choices):
        raise DataError(f"model.routing is replay, but the routers of {kind} keep to their own choice; set it to own")
