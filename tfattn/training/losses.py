"""Losses of sequence models, without padding."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from tfattn import _checks
from tfattn._shared import LogitFactors
from tfattn._types import Tensor
from tfattn.core.engine.tensorflow.gradients import custom_gradient

_MIN_VOCABULARY = 512  # for smaller vocabularies, avoiding the logits saves little


@keras.saving.register_keras_serializable("tfattn")
class MaskedCrossentropy(keras.losses.Loss):
    """Cross-entropy of integer ids, without padding, with label smoothing.

        loss = −(1 − ε) · log p[target] − ε · mean over the vocabulary of log p

    Smoothing works on ids; no one-hot rows are built. The loss is computed in float32.

    With the models of this package, a TensorFlow graph in float32 on a CPU computes the loss of 512
    words or more for one block of tokens at a time, with the gradients in the same pass, and holds
    no array of all logits, which then have no gradient of their own. They are used as usual if an
    operation follows them (`tf.identity` will do), in subclasses' `call`, and if nothing is summed.

    Args:
        label_smoothing: ε in [0, 1). Defaults to 0.
        padding_id: int, the id of padding. Defaults to 0.
        reduction: "sum_over_batch_size" (the mean over real tokens), "sum", or "none" (`(B, T)`, 0
            at padding). Defaults to "sum_over_batch_size".
        name, **kwargs: as in `keras.losses.Loss`.
    Call arguments:
        y_true: integers `(B, T)`.
        y_pred: float `(B, T, V)`, logits.
        sample_weight: float, broadcastable to `(B, T)`, or `(B,)` with one per row. The mean is
            then a weighted mean. To weight words, pass `weights[y_true]`: Keras converts
            `class_weight` of `fit` to one weight per row, by the position of its largest id.
    Returns:
        A scalar, in nats per token; 0 if there is no real token. Over many batches, `fit` shows
        Keras's mean of the batches, weighted by rows instead of tokens. Under `tf.distribute` the
        loss is the mean of the replicas' means, and with `gradient_accumulation_steps=N` an update
        uses the mean of N means. For the mean over all tokens take `reduction="sum"`; with SGD also
        divide the learning rate by the number of tokens per update, and multiply it by N if
        gradients are accumulated. An id that is neither padding nor in the vocabulary, or not a
        whole number, has a loss of NaN and no gradient.
    Raises:
        ValueError: `label_smoothing` is not in [0, 1); `reduction` is unknown; shapes do not fit.
    Example:
        >>> loss = MaskedCrossentropy()
        >>> print(round(float(loss(np.array([[1, 0]]), np.zeros((1, 2, 8), "float32"))), 4))
        2.0794

    Source: Szegedy et al. 2016, arXiv:1512.00567, section 7, with a uniform prior; Vaswani et al.
    2017, arXiv:1706.03762, section 5.4. Streamed computation: Wijmans et al. 2024,
    arXiv:2411.09009.
    """

    def __init__(
        self,
        label_smoothing: float = 0.0,
        padding_id: int = 0,
        reduction: str | None = "sum_over_batch_size",
        name: str = "masked_crossentropy",
        **kwargs: Any,
    ):
        who = type(self).__name__
        super().__init__(name=name, reduction=reduction, **kwargs)
        self.label_smoothing = _checks.probability(who, "label_smoothing", label_smoothing)
        self.padding_id = _checks.non_negative_int(who, "padding_id", padding_id)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """Loss of each token, `(B, T)`, 0 at padding."""
        is_real = y_true != self.padding_id
        # Backends differ in their handling of ids outside the vocabulary.
        is_word = ops.logical_and(y_true >= 0, y_true < ops.shape(y_pred)[-1])
        is_counted, logits = ops.logical_and(is_real, is_word), ops.cast(y_pred, "float32")
        losses = _token_losses(y_true, logits, is_counted, self.label_smoothing)
        return ops.where(ops.logical_or(is_word, ops.logical_not(is_real)), losses, float("nan"))

    def __call__(
        self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None
    ) -> Tensor:
        # Keras's own reduction divides by all tokens, padding included.
        y_true, y_pred, weights = checked_inputs(
            type(self).__name__, y_true, y_pred, sample_weight, self.padding_id
        )
        per_token = self.reduction in ("none", None)
        # A subclass with its own `call` needs the logits.
        needs_logits = per_token or type(self).call is not MaskedCrossentropy.call
        factors = None if needs_logits else streamable(y_pred)
        if factors is None:
            # Padding, and `where`, since the logits and the loss of a weight of 0 may be NaN.
            y_true = ops.where(weights == 0, self.padding_id, y_true)
            losses = ops.where(weights == 0, 0.0, self.call(y_true, y_pred) * weights)
            if per_token:
                return losses
            loss = ops.sum(losses)
        else:
            from tfattn.training import streamed

            factors.are_used = True
            loss = streamed.weighted_loss(factors, y_true, weights, self.label_smoothing)
        if self.reduction == "sum":
            return loss
        sum_weights = ops.sum(weights)
        mean = loss / ops.where(sum_weights == 0, 1.0, sum_weights)
        return _ReplicaMean(name="replica_mean", dtype="float32")(mean[None], mean[None])

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "label_smoothing": self.label_smoothing,
            "padding_id": self.padding_id,
        }


def _token_losses(target: Tensor, logits: Tensor, is_counted: Tensor, smoothing: float) -> Tensor:
    """Loss of each token, `(B, T)`; 0, and without a gradient, where it is not counted."""
    target = ops.where(is_counted, target, 0)[..., None]  # the id of padding may be no word

    def softmax_and_at_target(logits: Tensor) -> tuple[Tensor, Tensor]:
        p = ops.softmax(logits)
        return p, ops.take_along_axis(p, target, axis=-1)

    @custom_gradient  # automatic gradients would add an array of the logits' size for each term
    def losses(logits: Tensor) -> tuple[Tensor, Callable[..., Tensor]]:
        kept = p, _ = softmax_and_at_target(logits)
        # The largest probability is exp(largest logit − log-normalizer). An empty batch has none.
        row_max, p_max = (ops.max(x, axis=-1, initial=-float("inf")) for x in (logits, p))
        losses = row_max - ops.log(p_max)
        losses -= (1.0 - smoothing) * ops.take_along_axis(logits, target, axis=-1)[..., 0]
        if smoothing:
            losses -= smoothing * ops.mean(logits, axis=-1)

        def gradient(*args: Tensor, upstream: Tensor | None = None) -> Tensor:
            # PyTorch differentiates once more from the logits that it passes.
            p, p_target = kept if upstream is None else softmax_and_at_target(*args)
            (upstream,) = args if upstream is None else (upstream,)
            upstream, size = ops.where(is_counted, upstream, 0.0)[..., None], ops.shape(p)[-1]
            uniform = smoothing / ops.cast(size, "float32")
            by_target = (p_target - (1.0 - smoothing) - uniform) * upstream
            by_target = ops.reshape(ops.where(upstream == 0, 0.0, by_target), (-1,))
            # Division gives 0 where the upstream gradient is 0, even for NaN.
            grad = ops.divide_no_nan(p, ops.divide_no_nan(1.0, upstream)) - uniform * upstream
            ids = ops.reshape(target, (-1,))
            places = ops.stack([ops.arange(ops.size(ids), dtype="int32"), ids], axis=-1)
            grad = ops.scatter_update(ops.reshape(grad, (-1, size)), places, by_target)
            return ops.reshape(grad, ops.shape(p))

        return ops.where(is_counted, losses, 0.0), gradient

    return losses(logits)


class _ReplicaMean(keras.losses.Loss):
    """Keras's reduction of a mean `(1,)`, which divides it by the number of replicas."""

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        return y_pred


def streamable(logits: Tensor) -> LogitFactors | None:
    """The factors of these logits if the loss can be computed from them, else None."""
    factors = LogitFactors.of(logits)
    if factors is None or (factors.vectors.shape[0] or 0) < _MIN_VOCABULARY:
        return None
    from tfattn.training import streamed

    return factors if streamed.saves_time() else None


def checked_inputs(
    who: str, y_true: Any, y_pred: Any, sample_weight: Any, padding_id: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Ids as int32, logits, and the weight of each token: float32, 0 for padding."""
    y_true, y_pred = ops.convert_to_tensor(y_true), ops.convert_to_tensor(y_pred)
    if "float" in keras.backend.standardize_dtype(y_true.dtype):
        y_true = ops.where(y_true == ops.round(y_true), y_true, -1)  # no id of a word
    y_true = ops.cast(y_true, "int32")
    letters = f"{tuple(y_true.shape)}, as `y_true`, and one axis for the vocabulary"
    _checks.rank(who, "y_pred", y_pred.shape, (len(y_true.shape) + 1,), letters)
    known = zip(y_pred.shape[:-1], y_true.shape, strict=True)
    if any(None not in sizes and sizes[0] != sizes[1] for sizes in known):
        _checks.fail(who, "y_pred", f"have shape {letters}", tuple(y_pred.shape))

    weights = ops.cast(y_true != padding_id, "float32")
    if sample_weight is None:
        return y_true, y_pred, weights
    sample_weight = ops.cast(ops.convert_to_tensor(sample_weight), "float32")
    shape = tuple(sample_weight.shape)
    if len(shape) == 1 < len(y_true.shape):
        sample_weight, shape = sample_weight[:, None], (*shape, 1)
    _checks.broadcasts(who, "sample_weight", shape, y_true.shape, "(B,) or that of `y_true`")
    return y_true, y_pred, weights * sample_weight
