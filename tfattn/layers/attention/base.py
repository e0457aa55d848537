"""What every attention layer shares: its call arguments, its masks, its shapes. A layer defines
`pool` alone.
"""

import keras
from keras import ops

from tfattn import _checks
from tfattn.core import biases, masks, softmax
from tfattn.core.attend import attend
from tfattn.core.floats import floating
from tfattn.core.guard import zero_broken_padding, zero_hidden
from tfattn.core.masks import hooks
from tfattn.layers.attention import recording
from tfattn.layers.parts import CarryMask

__all__ = ["AttentionLayer"]


class AttentionLayer(keras.layers.Layer):
    """Base of all attention layers.

    Masks combine by AND; True means *may attend*. The masks that Keras carries on tensors arrive as
    `query_mask`, `value_mask` and `key_mask` by themselves, and stay on the caller's tensors. A
    query with nothing to attend to gets weights and an output of exactly 0.

    Args:
        dropout: probability in [0, 1) of dropping a weight in training.
        seed: int, for the dropout.
        **kwargs: `name`, `dtype`, `trainable` of `keras.layers.Layer`.
    Call arguments:
        query: float `(B, T, Dq)`.
        value: float `(B, S, Dv)`.
        key: float `(B, S, Dk)`; `value` where it is not given.
        query_mask: bool `(B, T)`, passed on with the output; it hides no key.
        value_mask: bool `(B, S)`; False hides that value and its key.
        key_mask: bool `(B, S)`; False hides that key and its value.
        attention_mask: bool, `(T, S)`, `(B, T, S)` or, where the layer has heads, `(B, H, T, S)`,
            with 1 where it repeats; or a mask object of `tfattn.masks`.
        return_attention_scores: whether to return the weights too (after softmax, whatever Keras's
            name says).
        training: whether dropout is active; the model's mode where it is not given.
        use_causal_mask: whether a query sees no later key; with T < S the queries are the last
            ones, so that query T−1 meets key S−1, as decoding needs.
        valid_lens: integers, `(B,)` one length a row or `(B, T)` one length a query: how many keys
            are real.
        bias: float, added to the scores before softmax; shapes as for `attention_mask`; or a bias
            object of `tfattn.biases`.
    Returns:
        The pooled values, `(B, T, ...)`; on request also the weights, whose rows sum to 1, or to 0
        where every key is masked.
    Raises:
        ValueError: ranks or lengths do not fit, a mask is not boolean, `valid_lens` holds no
            integers.
    """

    def __init__(self, dropout=0.0, seed=None, **kwargs):
        super().__init__(**kwargs)
        self.dropout = _checks.probability(type(self).__name__, "dropout", dropout)
        self.seed = seed
        self.supports_masking = True
        self._carry = CarryMask(name="carry_mask", dtype=self.dtype_policy)
        # Made only where it is used: its state would otherwise be one more thing in every saved
        # file.
        self.seed_generator = keras.random.SeedGenerator(seed) if self.dropout else None

    def pool(self, query, value, key, mask, bias, dropout, return_weights):
        """The layer itself: projects, and calls the engine.

        Args:
            query, value, key: float, rank 3.   mask: a mask object, or None.   bias: as in the
                call, or None.
            dropout: the rate that holds in this call, 0 at inference.
            return_weights: whether weights are wanted.
        Returns:
            (output, weights); weights are None where they are not wanted.
        """
        raise NotImplementedError

    def attend(self, query, value, key, score, mask, bias, dropout, return_weights):
        """The engine, with that score layer: (output, weights), weights None where they are not
        wanted.
        """
        query, key = score.prepare(query, key)
        result = attend(
            query=query,
            value=value,
            key=key,
            score=score.pairwise,
            parameters=score.parameters(),
            mask=mask,
            bias=bias,
            dropout=dropout,
            seed=self.seed_generator,
            return_weights=return_weights,
        )
        return result if return_weights else (result, None)

    def call(
        self,
        query,
        value,
        key=None,
        query_mask=None,
        value_mask=None,
        key_mask=None,
        attention_mask=None,
        return_attention_scores=False,
        training=None,
        use_causal_mask=False,
        valid_lens=None,
        bias=None,
    ):
        key = value if key is None else key
        self._check_lengths(query, value, key)
        query, value, key = (floating(x, self.compute_dtype) for x in (query, value, key))
        if bias is not None:
            shape = self.score_shape(query.shape, key.shape)
            bias = biases.checked(type(self).__name__, bias, shape)
        mask = self._joined_mask(
            query, key, attention_mask, valid_lens, (key_mask, value_mask), use_causal_mask
        )
        if query_mask is not None:
            query = zero_broken_padding(query, self._padding_mask("query_mask", query_mask, query))
        if mask is not None:
            seen = hooks.seen_keys(mask, ops.shape(query)[1], ops.shape(key)[1])
            if seen is not None:
                # Before the projections, whose gradients a broken token would reach.
                same = value is key
                value = zero_hidden(value, seen)
                key = value if same else zero_hidden(key, seen)
        wanted = return_attention_scores or recording.active()
        dropout = self.dropout if training else 0.0
        output, weights = self.pool(query, value, key, mask, bias, dropout, wanted)
        if query_mask is not None:
            output = self._carry((output, query_mask))
        if wanted:
            recording.note(self.path, weights)
        return (output, weights) if return_attention_scores else output

    def score_shape(self, query_shape, key_shape):
        """Shape of the scores and of the weights."""
        return (query_shape[0], query_shape[1], key_shape[1])

    def compute_output_shape(self, query_shape, value_shape, key_shape=None):
        return (*query_shape[:-1], value_shape[-1])

    def compute_output_spec(self, *args, **kwargs):
        # The call itself, traced with symbolic tensors: what comes out, and every check, cannot
        # differ from eager.
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def get_config(self):
        return {**super().get_config(), "dropout": self.dropout, "seed": self.seed}

    def _check_lengths(self, query, value, key):
        who = type(self).__name__
        for name, tensor in (("query", query), ("value", value), ("key", key)):
            if hasattr(tensor, "row_splits"):
                expected = "be dense: pass `ragged.to_tensor()`, and `valid_lens=ragged.row_lengths()` for the keys"
                _checks.fail(who, name, expected, type(tensor).__name__)
            _checks.rank(
                who, name, tensor.shape, (3,), "(B, T, D)" if name == "query" else "(B, S, D)"
            )
            _checks.same_batch(who, name, tensor.shape, "query", query.shape)
        _checks.same_size(who, "key", key.shape[1], "value", value.shape[1])

    def _joined_mask(self, query, key, attention_mask, valid_lens, padding_masks, use_causal_mask):
        """All masks of the call as one mask object, or None."""
        who = type(self).__name__
        shape = self.score_shape(query.shape, key.shape)
        rule = softmax.rule_of(
            who, shape, mask=attention_mask, valid_lens=valid_lens, name="attention_mask"
        )
        given = [
            (n, m)
            for n, m in zip(("key_mask", "value_mask"), padding_masks, strict=True)
            if m is not None
        ]
        keys = [self._padding_mask(name, mask, key) for name, mask in given]
        if len(keys) == 2 and given[0][1] is given[1][1]:
            keys.pop()  # the mask of a tensor that is key and value
        keys = [masks.explicit(mask[:, None, :]) for mask in keys]  # (B, 1, S)
        return masks.every(rule, *keys, masks.causal() if use_causal_mask else None)

    def _padding_mask(self, name, mask, tokens):
        who = type(self).__name__
        mask = mask if isinstance(mask, keras.KerasTensor) else ops.convert_to_tensor(mask)
        dtype = keras.backend.standardize_dtype(mask.dtype)
        _checks.boolean_dtype(who, name, dtype, "0 and 1 become a mask with `mask != 0`")
        _checks.rank(who, name, mask.shape, (2,), f"{tuple(tokens.shape[:2])}, one entry a token")
        _checks.broadcasts(who, name, mask.shape, tokens.shape[:2], "of one entry a token")
        return mask
