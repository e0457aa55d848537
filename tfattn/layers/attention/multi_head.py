"""Multi-head attention over any score."""

import dataclasses
import operator
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from tfattn import _checks
from tfattn._types import Shape, Tensor
from tfattn.core import biases, masks, softmax
from tfattn.core.biases import Bias
from tfattn.core.call import AttentionCall
from tfattn.core.masks import Grid, Mask
from tfattn.core.tensors import is_symbolic, known_sizes, shape_of
from tfattn.layers.attention.axes import Axes, checked_axes
from tfattn.layers.attention.base import AttentionLayer
from tfattn.layers.attention.normalizers import Normalizer
from tfattn.layers.attention.projection import from_heads, to_heads
from tfattn.layers.attention.scores import DotProductScore, Score
from tfattn.layers.configs import build_part, checked_layer
from tfattn.layers.positions.base import HeadPositions
from tfattn.layers.stepping import over_cache

# Arguments that are passed on to the linear maps.
_OF_MAPS = (
    "use_bias kernel_initializer kernel_regularizer kernel_constraint "
    "bias_initializer bias_regularizer bias_constraint"
).split()

# Values of `flash_attention` and paths of the engine.
_PATHS = {None: None, True: "streamed", False: "dense"}


@keras.saving.register_keras_serializable("tfattn")
class MultiHeadAttention(AttentionLayer):
    """Several attention heads, each over its own projections of query, key and value.

        head_h = attention(query · W_h^q, key · W_h^k, value · W_h^v)
        output = concat(head_1 … head_H) · W_o

    With the default score it computes what `keras.layers.MultiHeadAttention` computes, with the
    same names, and accepts that layer's `get_weights()` and `get_config()`. The linear maps
    `query_dense`, `key_dense`, `value_dense`, `output_dense` and optionally `gate_dense` have
    Keras's `enable_lora` and `quantize`.

    Args:
        num_heads: positive int H, heads of the query.
        key_dim: positive int, width of each head's query and key.
        value_dim: positive int, width of each head's value. Defaults to `key_dim`.
        dropout, seed, normalizer: as for `Attention`.
        use_bias: whether the linear maps have a bias.
        output_shape: positive int, width of the output, or several for an output of more axes.
            Defaults to the query's width.
        score: a score layer for all heads; its weights are separate for each head. Defaults to
            `DotProductScore()`.
        num_key_value_heads: positive int G that divides H: heads of key and value, each shared by
            H/G heads of the query. Defaults to H. 1 is multi-query attention.
        positions: a `tfattn.HeadPositions` layer, such as `tfattn.RotaryPositions()`. Defaults to
            none. With fewer queries than keys, queries have the last positions.
        attention_axes: int or several, the axes of inputs `(B, ..., D)` that hold the tokens which
            attend to each other; the others are folded into the batch. Defaults to all between the
            batch and the features. Over several axes tokens are numbered row by row.
        sliding_window: positive int; a query sees keys at smaller distances, on both sides, as
            under `tfattn.masks.window`. Defaults to any distance.
        flash_attention: True for the streamed path, which holds no T × S scores, unless weights
            are returned; False for the dense path; None, the default, for a choice by the sizes.
        use_gate: whether each feature of each head is multiplied by a gate, the sigmoid of a linear
            map of the query, before the output map.
        kernel_initializer, kernel_regularizer, kernel_constraint, bias_initializer,
            bias_regularizer, bias_constraint, activity_regularizer: as in Keras, for each map.
        output_kernel_initializer: for the output map. Defaults to `kernel_initializer`.
    Call arguments: `(query, value, key)` in Keras's order; pass them by name. Those of `Attention`,
    except:
        query, value, key: also with more axes, `(B, ..., D)`.
        attention_mask: bool, or 0 and 1, `(T, S)`, `(B, T, S)` or `(B, H, T, S)`, or a mask object;
            True = may attend. With more axes `(B, F…, H, A…, A…)`: F are the folded axes, A
            the attention axes of the queries, then of the keys; B, F…, H may be omitted from the
            right. A mask object or bias object with entries per row has B·F entries.
        valid_lens: with more axes also `(B, F…)` or `(B, F…, T)`; axes of size 1 broadcast.
        bias: float, in the shapes of `attention_mask`, where axes of size 1 broadcast; or a bias
            object, such as `tfattn.biases.alibi(num_heads)`.
    Returns:
        `(B, T, E)`, where E is the query's width or `output_shape`; with
        `return_attention_scores=True` also the weights `(B, H, T, S)`, or `(B, F…, H, A…, A…)`:
        each row sums to 1, or to 0 where every key is masked (the output there is the bias of the
        output map).
    Raises:
        ValueError: `flash_attention` is True with a normalizer that cannot stream, or on a backend
            without a streamed path.
    Example:
        >>> tokens = np.ones((2, 7, 16), "float32")
        >>> layer = MultiHeadAttention(num_heads=4, key_dim=4)
        >>> tuple(layer(query=tokens, value=tokens, use_causal_mask=True).shape)
        (2, 7, 16)
        >>> near = masks.causal() & masks.window(3)
        >>> tuple(layer(query=tokens, value=tokens, attention_mask=near).shape)
        (2, 7, 16)

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2; shared key heads, Ainslie et al.
    2023, arXiv:2305.13245; gates, Qiu et al. 2025, arXiv:2505.06708. Differs from Keras's layer in
    `use_causal_mask` and `sliding_window` with T ≠ S, which align queries and keys at the end here
    and at the start there; and in fully masked queries. Before Keras 3.15 also in the initial
    weights, which follow the paper's 2-D matrices here.
    """

    folds_axes = True

    # The names in the `.weights.h5` files of `keras.layers.GroupQueryAttention`, and of gates.
    _query_dense = property(operator.attrgetter("query_dense"))
    _key_dense = property(operator.attrgetter("key_dense"))
    _value_dense = property(operator.attrgetter("value_dense"))
    _gate_dense = property(operator.attrgetter("gate_dense"))
    _output_dense = property(operator.attrgetter("output_dense"))

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        use_bias: bool = True,
        output_shape: int | Sequence[int] | None = None,
        score: Score | None = None,
        num_key_value_heads: int | None = None,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        output_kernel_initializer: Any = None,
        positions: HeadPositions | None = None,
        attention_axes: int | Sequence[int] | None = None,
        sliding_window: int | None = None,
        flash_attention: bool | None = None,
        use_gate: bool = False,
        seed: int | None = None,
        normalizer: Normalizer | None = None,
        **kwargs: Any,
    ):
        # Not the layer's own regularizer, which would count the output a second time.
        regularizer = keras.regularizers.get(kwargs.pop("activity_regularizer", None))
        super().__init__(score=score, dropout=dropout, seed=seed, normalizer=normalizer, **kwargs)
        who = "MultiHeadAttention"
        self._activity_regularizer = regularizer
        self.num_heads = _checks.positive_int(who, "num_heads", num_heads)
        self.key_dim = _checks.positive_int(who, "key_dim", key_dim)
        value_dim = key_dim if value_dim is None else value_dim
        self.value_dim = _checks.positive_int(who, "value_dim", value_dim)
        groups = num_heads if num_key_value_heads is None else num_key_value_heads
        self.num_key_value_heads = _checks.positive_int(who, "num_key_value_heads", groups)
        _checks.divides(who, "num_key_value_heads", groups, "num_heads", num_heads)
        # Keras models use the name `output_shape` for another attribute.
        self._output_shape = _checked_features(who, output_shape)
        self.attention_axes = checked_axes(who, attention_axes)
        if sliding_window is not None:
            _checks.positive_int(who, "sliding_window", sliding_window)
        self.sliding_window = sliding_window
        if flash_attention is not None:
            _checks.boolean(who, "flash_attention", flash_attention)
        self.flash_attention = flash_attention
        self.use_gate = _checks.boolean(who, "use_gate", use_gate)
        self.use_bias = _checks.boolean(who, "use_bias", use_bias)
        expected = "be a HeadPositions layer, or None (add positional encodings to the inputs)"
        self.positions = checked_layer(who, "positions", positions, HeadPositions, expected)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.output_kernel_initializer = keras.initializers.get(output_kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)
        self._widths: tuple[int | None, ...] = (None,) * 3

    def _check_call(self, arguments: dict[str, Any]) -> None:
        super()._check_call(arguments)
        for name, width in zip(("query", "value", "key"), self._widths, strict=True):
            tokens = arguments.get(name)
            shape = (None,) if tokens is None else tuple(tokens.shape)
            if None not in (shape[-1], width) and shape[-1] != width:
                expected = f"have {width} features, for which the layer was built"
                _checks.fail(type(self).__name__, name, expected, shape)

    def build(self, query_shape: Shape, value_shape: Shape, key_shape: Any = None) -> None:
        key_shape = value_shape if key_shape is None else key_shape
        for name, shape in (("query", query_shape), ("value", value_shape), ("key", key_shape)):
            _checks.known_width(type(self).__name__, name, shape)
        self._widths = query_shape[-1], value_shape[-1], key_shape[-1]
        heads, groups = self.num_heads, self.num_key_value_heads
        options = {name: getattr(self, name) for name in _OF_MAPS}
        options["activity_regularizer"] = self._activity_regularizer

        def named(name: str) -> dict[str, Any]:
            policy = self.dtype_policy
            # Looked up here, since Keras saves and quantizes by the default of a map.
            if isinstance(policy, keras.dtype_policies.DTypePolicyMap):
                policy = policy[f"{self.path}/{name}"]
            return {**options, "name": name, "dtype": policy}

        # In the order of `get_weights()` of Keras's layer.
        query, key, value = ((None, None, s[-1]) for s in (query_shape, key_shape, value_shape))
        self.query_dense = to_heads(query, heads, self.key_dim, **named("query"))
        self.key_dense = to_heads(key, groups, self.key_dim, **named("key"))
        self.gate_dense = None
        if self.use_gate:
            gate = named("gate")
            self.gate_dense = to_heads(query, heads, self.value_dim, activation="sigmoid", **gate)
        self.value_dense = to_heads(value, groups, self.value_dim, **named("value"))
        if self.output_kernel_initializer is not None:
            options["kernel_initializer"] = self.output_kernel_initializer
        pooled = (None, None, heads, self.value_dim)
        features = self._features(query_shape)
        self.output_dense = from_heads(pooled, features, **named("attention_output"))
        batch, queries, keys = None, None, None
        if len(query_shape) == 3:
            batch, queries, keys = query_shape[0], query_shape[1], key_shape[1]
        query_heads = (batch, heads, queries, self.key_dim)
        key_heads = (batch, groups, keys, self.key_dim)
        build_part(self, self.score, query_heads, key_heads)
        build_part(self, self.positions, query_heads, key_heads)
        build_part(self, self.normalizer, (batch, heads, queries, keys))

    @property
    def engine_path(self) -> str | None:  # type: ignore[override]
        if self.flash_attention is None and keras.config.is_flash_attention_enabled() is False:
            return "dense"  # `keras.config.disable_flash_attention()`
        return _PATHS[self.flash_attention]

    def call(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor | None = None,
        query_mask: Tensor | None = None,
        value_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        attention_mask: Tensor | Mask | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
        valid_lens: Tensor | None = None,
        bias: Tensor | Bias | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        window = None if self.sliding_window is None else masks.window(self.sliding_window)
        tokens: list[Any] = [query, value, key, query_mask, value_mask, key_mask, attention_mask]
        axes = None
        if max(len(query.shape), len(value.shape)) > 3 or self.attention_axes is not None:
            axes = self._axes(query.shape, value.shape, None if key is None else key.shape)
            tokens, valid_lens, bias = axes.fold_call(tokens, valid_lens, bias)
        tokens += [return_attention_scores, training, use_causal_mask, valid_lens, bias]
        tokens += [window, self.num_heads]
        call, folded_mask = self._masked(*tokens)
        own = type(self) is MultiHeadAttention and type(self.score) is DotProductScore
        own = own and self.positions is self.normalizer is None
        if own and is_symbolic() and not return_attention_scores:
            # A trace of the rest takes most of the time in which a functional model is built.
            shape = *shape_of(call.query)[:2], *self._features(call.query.shape)
            output, weights = ops.zeros(shape, self.output_dense.compute_dtype), None
        else:
            call, start = over_cache(type(self).__name__, call, self.project_keys)
            output, weights = self._attend_heads(call, start)
        if axes is None:
            return self._results(output, weights, folded_mask, return_attention_scores)
        query_mask = None if query_mask is None else ops.cast(query_mask, "bool")
        output = axes.unfold(output, query)
        weights = None if weights is None else axes.unfold_weights(weights, query, value)
        return self._results(output, weights, query_mask, return_attention_scores)

    def _axes(self, query: Shape, value: Shape, key: Shape | None) -> Axes:
        axes = Axes(type(self).__name__, self.attention_axes, query, value, key)
        if self.sliding_window is not None and len(axes.attended) > 1:
            expected = "be None with several attention axes (pass `attention_mask`)"
            _checks.fail(type(self).__name__, "sliding_window", expected, self.sliding_window)
        return axes

    def project_keys(
        self, value: Tensor, key: Tensor | None = None, start: int | Tensor = 0
    ) -> tuple[Tensor, Tensor]:
        """Keys and values in heads. They do not depend on the query, so decoding caches them.

        Args:
            value: float `(B, S, Dv)`.
            key: float `(B, S, Dk)`. Defaults to `value`.
            start: position of the first key, int or scalar integer tensor.
        Returns:
            keys `(B, G, S, P)` and values `(B, G, S, V)`, G key heads.
        """
        keys, values = self.key_dense(value if key is None else key), self.value_dense(value)
        keys, values = _heads_first(keys), _heads_first(values)
        if self.positions is not None:
            keys = self.positions.rotate(keys, start)
        return keys, values

    def attend_projected(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor | Mask | None = None,
        bias: Tensor | Bias | None = None,
        start: int | Tensor | None = None,
    ) -> Tensor:
        """Attention over the keys and values of `project_keys`: the rest of a call.

        Args:
            query: float `(B, T, Dq)`.   keys, values: from `project_keys`.
            mask, bias: as in `tfattn.attend`.
            start: position of the first query on the keys' axis, for positions and bias objects:
                int or scalar integer tensor. Defaults to S − T, which aligns the ends.
        Returns:
            the output, as in a call.
        """
        who = type(self).__name__
        shape = (query.shape[0], self.num_heads, query.shape[1], keys.shape[2])
        mask = softmax.mask_of(who, shape, mask)
        if bias is not None:
            bias = biases.checked(who, bias, shape)
        window: Any = None if self.sliding_window is None else masks.window(self.sliding_window)
        if window is not None and start is not None:
            # By default the engine aligns the last query with the last key.
            window = window.on(Grid.whole(ops.shape(query)[1], ops.shape(keys)[2], offset=start))
        mask = masks.all_of(mask, window)
        call = AttentionCall(query=query, value=values, key=keys, mask=mask, bias=bias)
        return self._attend_heads(call, start)[0]

    def _attend_heads(self, call: AttentionCall, start: Any = None) -> tuple[Tensor, Tensor | None]:
        """The rest of a call, with keys and values in heads and the window in the mask."""
        query, keys, bias = call.query, call.key, call.bias
        gate = None if self.gate_dense is None else self.gate_dense(query)  # (B, T, H, V)
        query = _heads_first(self.query_dense(query))  # (B, H, T, P)
        if self.positions is not None:
            num_queries, num_keys = ops.shape(query)[2], ops.shape(keys)[2]
            query = self.positions.rotate(query, num_keys - num_queries if start is None else start)
            added = self.positions.bias()
            if added is not None:
                shape = (*query.shape[:3], keys.shape[2])
                added.check(type(self).__name__, "positions", known_sizes(shape))
                bias = added if bias is None else added + bias
        if start is not None and bias is not None:
            # By default the engine aligns the last query with the last key.
            grid = Grid.whole(ops.shape(query)[2], ops.shape(keys)[2], offset=start)
            bias = biases.explicit(bias.on(grid, *bias.parameters()))
        output, weights = self.run(dataclasses.replace(call, query=query, bias=bias), self.score)
        output = ops.swapaxes(output, 1, 2)  # (B, T, H, V)
        return self.output_dense(output if gate is None else output * gate), weights

    def compute_output_shape(
        self, query_shape: Shape, value_shape: Shape, key_shape: Shape | None = None
    ) -> Shape:
        return (*query_shape[:-1], *self._features(query_shape))

    def _features(self, query_shape: Shape) -> Shape:
        features = query_shape[-1] if self._output_shape is None else self._output_shape
        return features if isinstance(features, tuple) else (features,)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "output_shape": self._output_shape,
            "activity_regularizer": keras.regularizers.serialize(self._activity_regularizer),
        }


def _heads_first(heads: Tensor) -> Tensor:
    if heads.shape[2] == 1:
        # No copy; besides, ONNX's converter gets the transpose of one head wrong.
        return ops.expand_dims(ops.squeeze(heads, axis=2), 1)
    return ops.swapaxes(heads, 1, 2)  # (B, T, H, P) to (B, H, T, P)


def _checked_features(who: str, output_shape: Any) -> int | tuple[int, ...] | None:
    """`output_shape` as one size or a tuple of sizes; None for None."""
    if output_shape is None:
        return None
    sizes = output_shape if isinstance(output_shape, list | tuple) else (output_shape,)
    sizes = tuple(_checks.positive_int(who, "output_shape", size) for size in sizes)
    if not sizes:
        _checks.fail(who, "output_shape", "be a positive integer or several", output_shape)
    return sizes if len(sizes) > 1 else sizes[0]
