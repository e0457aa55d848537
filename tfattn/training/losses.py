"""The loss of sequence models: padding does not count."""

import keras
from keras import ops

from tfattn import _checks
from tfattn._factors import Factors

__all__ = ["MaskedCrossentropy"]

_LEAST_VOCABULARY = 512  # of whose words the logits are worth avoiding, as measured on two cores
_REDUCTIONS = ("sum_over_batch_size", "sum", "none", None)


@keras.saving.register_keras_serializable("tfattn")
class MaskedCrossentropy(keras.losses.Loss):
    """Cross-entropy of integer ids, over real tokens only, with label smoothing.

        loss = −(1 − ε) · log p[target] − ε · mean over the vocabulary of log p

    Smoothing works on ids, and builds no one-hot rows. Computed in float32.

    On TensorFlow without a GPU the models of this collection leave on their logits, in a graph and
    in float32, the product that these are. For 512 words and more, mean and sum are then found
    without them, a block of tokens at a time, the gradients in the same walk: nothing of the size B
    · T · V is held, and the loss has no gradient by the logits themselves. Logits that were worked
    on since (`tf.identity` is enough), a subclass of this loss with a `call` of its own, and
    `reduction="none"` take the common way.

    Args:
        label_smoothing: ε in [0, 1).
        padding_id: int, the id that does not count.
        reduction: "sum_over_batch_size" (the mean over real tokens), "sum", or "none" (`(B, T)`, 0
            at padding).
        name, **kwargs: as in `keras.losses.Loss`.
    Call arguments:
        y_true: integers `(B, T)`.
        y_pred: float `(B, T, V)`, scores before softmax (logits).
        sample_weight: float, broadcastable to `(B, T)`, or one a row `(B,)`; the mean is then a
            weighted one.
    Returns:
        A scalar, in nats a token; 0 where no token is real. What `fit` shows for many batches is
        Keras's mean of theirs, weighted by rows and not by tokens: where batches hold as many
        tokens in more, shorter rows, short ones count more. Under `tf.distribute` it is the mean of
        the replicas' means. An id that is neither padding nor in the vocabulary has a loss of NaN,
        which shows, and no gradient.
    Raises:
        ValueError: `label_smoothing` is not in [0, 1), an unknown reduction, shapes that do not
            fit.
    Example:
        >>> loss = MaskedCrossentropy()
        >>> print(round(float(loss(np.array([[1, 0]]), np.zeros((1, 2, 8), "float32"))), 4))
        2.0794

    Source: Szegedy et al. 2016, arXiv:1512.00567, section 7, with a uniform prior; Vaswani et al.
    2017, section 5.4. Without logits: Wijmans et al. 2024, arXiv:2411.09009.
    """

    def __init__(
        self,
        label_smoothing=0.0,
        padding_id=0,
        reduction="sum_over_batch_size",
        name="masked_crossentropy",
        **kwargs,
    ):
        if reduction not in _REDUCTIONS:
            _checks.fail(type(self).__name__, "reduction", f"be one of {_REDUCTIONS}", reduction)
        super().__init__(name=name, reduction=reduction, **kwargs)
        self.label_smoothing = _checks.probability(
            type(self).__name__, "label_smoothing", label_smoothing
        )
        self.padding_id = _checks.non_negative_int(type(self).__name__, "padding_id", padding_id)

    def call(self, y_true, y_pred):
        """Loss of each token, `(B, T)`, 0 at padding."""
        y_true = ops.cast(y_true, "int32")
        check_scores(type(self).__name__, y_true, y_pred)
        real = y_true != self.padding_id
        # Of an id that is no word a backend takes another word, counts from the end, or says
        # something about indices.
        word = ops.logical_and(y_true >= 0, y_true < ops.shape(y_pred)[-1])
        losses = _token_losses(
            y_true, ops.cast(y_pred, "float32"), ops.logical_and(real, word), self.label_smoothing
        )
        return ops.where(ops.logical_or(word, ops.logical_not(real)), losses, float("nan"))

    def __call__(self, y_true, y_pred, sample_weight=None):
        # Keras's own reduction divides by all tokens, padding included.
        y_true, y_pred = ops.convert_to_tensor(y_true), ops.convert_to_tensor(y_pred)
        weights = token_weights(
            type(self).__name__, y_true, self.padding_id, sample_weight, "float32"
        )
        if self.reduction in ("none", None):
            return self._weighted(y_true, y_pred, weights)
        total = self._total(y_true, y_pred, weights)
        if self.reduction == "sum":
            return total
        count = ops.sum(weights)
        mean = total / ops.where(count == 0, 1.0, count)
        return _Share(name="share", dtype="float32")(mean[None], mean[None])

    def _weighted(self, y_true, y_pred, weights):
        # what counts for nothing may be NaN
        return ops.where(weights == 0, 0.0, self.call(y_true, y_pred) * weights)

    def _total(self, y_true, y_pred, weights):
        factors = streamable(y_pred)
        # A class with a loss of its own for each token needs the logits.
        if factors is None or type(self).call is not MaskedCrossentropy.call:
            return ops.sum(self._weighted(y_true, y_pred, weights))
        from tfattn.training import streamed

        check_scores(type(self).__name__, y_true, y_pred)
        Factors.spare(y_pred)
        return streamed.weighted_loss(
            factors, ops.cast(y_true, "int32"), weights, self.label_smoothing
        )

    def get_config(self):
        return {
            **super().get_config(),
            "label_smoothing": self.label_smoothing,
            "padding_id": self.padding_id,
        }


def _token_losses(target, logits, real, smoothing):
    """Loss of each token, `(B, T)`, 0 at padding, with its gradient written out.

    Over a large vocabulary nearly all the time goes into passes over `(B, T, V)`. Left to itself,
    differentiation makes such an array for each of the mask, the sum of exponentials, the target's
    place and the mean, and adds them up.
    """
    # an id that stands for padding alone may be none of the vocabulary's
    target = ops.where(real, target, 0)

    @ops.custom_gradient
    def losses(logits):
        # `initial` lets an empty batch pass.
        largest = ops.max(logits, axis=-1, keepdims=True, initial=-float("inf"))  # (B, T, 1)
        exponentials = ops.exp(logits - largest)  # (B, T, V), kept for the gradient
        total = ops.sum(exponentials, axis=-1)  # (B, T)
        log_normaliser = largest[..., 0] + ops.log(total)
        target_logit = ops.take_along_axis(logits, target[..., None], axis=-1)[..., 0]
        losses = log_normaliser - (1.0 - smoothing) * target_logit
        if smoothing:
            losses = losses - smoothing * ops.mean(logits, axis=-1)

        def gradient(*arguments, upstream=None):
            upstream = ops.where(real, arguments[0] if upstream is None else upstream, 0.0)
            at_target = ops.exp(target_logit - log_normaliser)
            return _logits_gradient(exponentials, total, target, at_target, upstream, smoothing)

        return ops.where(real, losses, 0.0), gradient

    return losses(logits)


def _logits_gradient(exponentials, total, target, at_target, upstream, smoothing):
    """(softmax − (1 − ε) · [target] − ε / V) · upstream, `(B, T, V)`; `at_target` is the softmax
    there, `(B, T)`.
    """
    vocabulary_size = ops.shape(exponentials)[-1]
    everywhere = smoothing / ops.cast(vocabulary_size, "float32")
    # Divided, and not multiplied: where upstream is 0 this gives 0 even for NaN, and needs no pass
    # for a mask.
    gradient = ops.divide_no_nan(exponentials, ops.divide_no_nan(total, upstream)[..., None])
    if smoothing:
        gradient = gradient - (everywhere * upstream)[..., None]
    at_target = ops.where(
        upstream == 0, 0.0, (at_target - (1.0 - smoothing) - everywhere) * upstream
    )
    rows = ops.reshape(gradient, (-1, vocabulary_size))  # (B · T, V)
    places = ops.stack(
        [ops.arange(ops.shape(rows)[0], dtype="int32"), ops.reshape(target, (-1,))], axis=-1
    )
    rows = ops.scatter_update(rows, places, ops.reshape(at_target, (-1,)))
    return ops.reshape(rows, ops.shape(exponentials))


class _Share(keras.losses.Loss):
    """A replica's share of a mean `(1,)`: Keras's own reduction, which knows how many a
    distribution strategy adds up.
    """

    def call(self, y_true, y_pred):
        return y_pred


def streamable(logits):
    """The factors of logits that nothing has to hold, or None."""
    factors = Factors.of(logits)
    if factors is None or (factors.vectors.shape[0] or 0) < _LEAST_VOCABULARY:
        return None
    from tfattn.training import streamed

    return factors if streamed.pays() else None


def token_weights(who, y_true, padding_id, sample_weight, dtype):
    """How much each token counts, of the shape of `y_true`: 0 for padding; `sample_weight` may have
    one number a row.
    """
    weights = ops.cast(y_true != padding_id, dtype)
    if sample_weight is None:
        return weights
    sample_weight = ops.cast(sample_weight, dtype)
    shape = tuple(sample_weight.shape)
    if len(shape) == 1 < len(y_true.shape):
        sample_weight, shape = sample_weight[:, None], (*shape, 1)
    _checks.broadcasts(who, "sample_weight", shape, y_true.shape, "(B,) or that of `y_true`")
    return weights * sample_weight


def check_scores(who, y_true, y_pred):
    """Raises unless `y_pred` has the shape of `y_true`, and one axis more for the vocabulary."""
    letters = f"{tuple(y_true.shape)}, as `y_true`, and one axis for the vocabulary"
    _checks.rank(who, "y_pred", y_pred.shape, (len(y_true.shape) + 1,), letters)
    known = zip(y_pred.shape[:-1], y_true.shape, strict=True)
    if any(None not in sizes and sizes[0] != sizes[1] for sizes in known):
        _checks.fail(who, "y_pred", f"have shape {letters}", tuple(y_pred.shape))
