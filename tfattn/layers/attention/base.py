"""Base of all attention layers: masks, attention with a score layer, recorded weights, shapes."""

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, overload

import keras
import numpy as np
from keras import ops

from tfattn import _checks
from tfattn._types import Shape, Tensor
from tfattn.core import biases, masks, softmax
from tfattn.core.biases import Bias
from tfattn.core.call import AttentionCall
from tfattn.core.engine import dispatch
from tfattn.core.guard import zero_nonfinite_padding, zero_unseen
from tfattn.core.masks import Mask
from tfattn.core.tensors import floating, only_shapes_are_computed
from tfattn.layers.attention.normalizers import Normalizer
from tfattn.layers.attention.scores import DotProductScore, Score
from tfattn.layers.base import ORDER, CheckedCall, spec_of_call
from tfattn.layers.configs import checked_layer
from tfattn.layers.tokens import AttachMask, checked_padding

# The weights by path, while a call of `attention_weights` runs.
_recorded: contextvars.ContextVar[dict[str, np.ndarray] | None] = contextvars.ContextVar(
    "tfattn_recorded", default=None
)


class AttentionLayer(CheckedCall, keras.layers.Layer):
    """Base of all attention layers. A new one is a subclass of `Attention` that defines `run`.

    The order of call arguments is `(query, value, key)`, as in Keras, not the usual query, key,
    value. So pass them by name. To see the weights, call a layer with
    `return_attention_scores=True`, or a whole model by `tfattn.attention_weights(model, inputs)`.

    Masks are joined by AND; True means *may attend*. Keras passes the implicit masks of tensors as
    `query_mask`, `value_mask` and `key_mask`. A query that may attend to no key gets weights and an
    output of exactly 0.

    Args, Call arguments, Returns: see `tfattn.Attention`.
    Attributes:
        engine_path: "dense" or "streamed", the path of `tfattn.attend` if no weights are returned;
            None for a choice by the sizes.
    """

    call_axes = {"query": "BTD", "value": "BSE", "key": "BSF"}
    engine_path: str | None = None

    def __init__(
        self,
        score: Score | None = None,
        dropout: float = 0.0,
        seed: int | None = None,
        normalizer: Normalizer | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        who = type(self).__name__
        expected = "be a score layer, such as tfattn.AdditiveScore(units=8)"
        checked_layer(who, "score", score, Score, expected)
        self.score = score or DotProductScore(dtype=self.dtype_policy, name="score")
        expected = "be a Normalizer layer, such as tfattn.AttentionSinks(), or None"
        self.normalizer = checked_layer(who, "normalizer", normalizer, Normalizer, expected)
        self.dropout = _checks.probability(who, "dropout", dropout)
        self.seed = _checks.seed(who, seed)
        self.supports_masking = True
        self._attach_mask = AttachMask(name="attach_mask", dtype=self.dtype_policy)
        # Only with dropout, since saved files contain the generator's state.
        self.seed_generator = keras.random.SeedGenerator(seed) if self.dropout else None

    def run(self, call: AttentionCall, score: Score) -> tuple[Tensor, Any]:
        """(Output, weights or None) of a call without checks, with a score layer."""
        prepared, parameters = score.prepare(call.query, call.key), score.parameters()
        query, key = map(floating, prepared)  # a user's score may return integers
        mask, bias, normalizer = call.mask, call.bias, self.normalizer
        if (mask is not None or bias is not None) and only_shapes_are_computed():
            mask = bias = None
        scales = normalizer is not None and normalizer.scales_rows
        found = dispatch.run(
            dataclasses.replace(
                call,
                query=query,
                key=key,
                mask=mask,
                bias=bias,
                score=score.pairwise,
                parameters=parameters,
                seed=self.seed_generator,
                path=None if call.return_weights else self.engine_path,
                return_log_sum_exp=scales,
                normalizer=None if normalizer is None else normalizer.function,
            )
        )
        output, *weights = found if call.return_weights or scales else (found,)
        if normalizer is not None and scales:
            scale = ops.expand_dims(normalizer.row_scale(weights.pop()), -1)
            output, *weights = [x * ops.cast(scale, x.dtype) for x in (output, *weights)]
        return output, weights[0] if call.return_weights else None

    if TYPE_CHECKING:

        @overload
        def __call__(
            self, *args: Any, return_attention_scores: Literal[True], **kwargs: Any
        ) -> tuple[Tensor, Tensor]: ...
        @overload
        def __call__(self, *args: Any, return_attention_scores: bool, **kwargs: Any) -> Any: ...
        @overload
        def __call__(self, *args: Any, **kwargs: Any) -> Tensor: ...
        def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    def _masked(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor | None,
        query_mask: Tensor | None,
        value_mask: Tensor | None,
        key_mask: Tensor | None,
        attention_mask: Tensor | Mask | None,
        return_attention_scores: bool,
        training: bool | None,
        use_causal_mask: bool,
        valid_lens: Tensor | None,
        bias: Tensor | Bias | None,
        window: Mask | None = None,
        num_heads: int | None = None,
    ) -> tuple[AttentionCall, Tensor | None]:
        """The call on float tensors, with all masks as one and zeros in what it hides; and the
        checked mask of the queries. The arguments are those of a call, in their order.
        """
        query, value = floating(query, self.compute_dtype), floating(value, self.compute_dtype)
        key = value if key is None else floating(key, self.compute_dtype)
        who, heads = type(self).__name__, () if num_heads is None else (num_heads,)
        shape = (query.shape[0], *heads, query.shape[1], key.shape[1])  # of the scores
        if bias is not None:
            bias = biases.checked(who, bias, shape)
        found: list[Mask | None] = [masks.causal()] if use_causal_mask else []
        if attention_mask is not None or valid_lens is not None:
            found.append(softmax.mask_of(who, shape, attention_mask, valid_lens, "attention_mask"))
        value_mask = None if value_mask is key_mask else value_mask
        for name, padding in (("key_mask", key_mask), ("value_mask", value_mask)):
            if padding is not None:
                padding = checked_padding(who, name, padding, key)
                found.append(masks.explicit(ops.expand_dims(padding, 1)))  # (B, 1, S)
        mask = masks.all_of(*found, window)
        if query_mask is not None:
            # With one axis it is probably the fourth positional argument.
            query_mask = checked_padding(who, "query_mask", query_mask, query, ORDER)
            query = zero_nonfinite_padding(query, query_mask)
        # Before the projections, so that NaN in a hidden token reaches no gradient.
        value, key = zero_unseen(mask, query, value, key)
        call = AttentionCall(
            query=query,
            value=value,
            key=key,
            mask=mask,
            bias=bias,
            # In this order: under `keras.RematScope` flags are tensors on JAX.
            dropout=self.dropout if self.dropout and training else 0.0,
            return_weights=return_attention_scores or _recorded.get() is not None,
        )
        return call, query_mask

    def _results(
        self, output: Tensor, weights: Any, query_mask: Any, return_attention_scores: bool
    ) -> Any:
        """The results of a call, whose weights are recorded if that is wanted."""
        if query_mask is not None:
            output = self._attach_mask((output, query_mask))
        if weights is not None:
            record(self.path, weights)
        return (output, weights) if return_attention_scores else output

    def compute_output_shape(
        self, query_shape: Shape, value_shape: Shape, key_shape: Shape | None = None
    ) -> Shape:
        return (*query_shape[:-1], value_shape[-1])

    compute_output_spec = spec_of_call

    @property
    def attention_weights(self) -> None:
        """Raises `AttributeError` with the ways to get weights; a layer does not store them."""
        raise AttributeError(
            f"{type(self).__name__}: weights of a call come with `return_attention_scores=True`, "
            "and those of every layer of a model with `tfattn.attention_weights(model, inputs)`"
        )

    if keras.backend.backend() == "torch":

        def __getattr__(self, name: str) -> Any:
            # torch.nn.Module.__getattr__ would replace the property's message.
            if name == "attention_weights":
                return AttentionLayer.attention_weights.fget(self)  # type: ignore[attr-defined]
            return super().__getattr__(name)


@contextlib.contextmanager
def recorded_weights() -> Iterator[dict[str, np.ndarray]]:
    """Records the weights of calls within the context, into the dict that it gives."""
    weights: dict[str, np.ndarray] = {}
    token = _recorded.set(weights)
    try:
        yield weights
    finally:
        _recorded.reset(token)


def record(path: str, weights: Any) -> None:
    """Records the weights of one call of the layer at `path`, within `recorded_weights`."""
    recorded = _recorded.get()
    array = None if recorded is None else as_array(weights)
    if recorded is None or array is None:  # some models are traced once to be built
        return
    again = sum(1 for known in recorded if known == path or known.startswith(f"{path}:"))
    recorded[f"{path}:{again}" if again else path] = array


def as_array(tensor: Tensor) -> np.ndarray | None:
    """`tensor` in NumPy, or None if it is symbolic."""
    try:
        return ops.convert_to_numpy(tensor)
    except (NotImplementedError, TypeError):
        return None
