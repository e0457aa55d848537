"""Attention weights out of any model, in one call."""

import contextlib
import contextvars

from keras import ops

__all__ = ["attention_weights"]

_notes = contextvars.ContextVar("tfattn_notes", default=None)


def attention_weights(model, *inputs, **kwargs):
    """Runs a model once and returns the attention weights of every layer in it, by the layer's
    path.

    Works on any Keras model or layer with attention layers of this collection inside, also on a
    loaded one.

    Args:
        model: a `keras.Model` or layer.
        *inputs: what the model is called with.
        **kwargs: likewise; `training` is False unless it is given.
    Returns:
        dict from path to a NumPy array, `(B, T, S)` or `(B, H, T, S)`, in the order of the calls. A
        layer that is called more than once appears again as `path:1`, `path:2` and so on.
    Raises:
        ValueError: no attention layer of this collection ran eagerly.
    Example:
        >>> layer = DotProductAttention(name="attention")
        >>> weights = attention_weights(layer, np.ones((1, 2, 4), "float32"), np.ones((1, 3, 4), "float32"))
        >>> print(weights["attention"].shape)
        (1, 2, 3)
    """
    kwargs.setdefault("training", False)
    with _recording() as notes:
        model(*inputs, **kwargs)
    if not notes:
        raise ValueError(
            "attention_weights: `model` must run attention layers of this collection eagerly (a `call` under tf.function "
            f"hides them). Received: model={model!r}"
        )
    return notes


@contextlib.contextmanager
def _recording():
    token = _notes.set({})
    try:
        yield _notes.get()
    finally:
        _notes.reset(token)


def active():
    """Whether weights are being collected."""
    return _notes.get() is not None


def note(path, weights):
    """Keeps the weights of one call, if somebody collects them."""
    notes = _notes.get()
    if notes is None:
        return
    try:
        weights = ops.convert_to_numpy(weights)
    except (NotImplementedError, TypeError):
        # No numbers to keep: some models are traced once to be built, before they run.
        return
    again = sum(1 for known in notes if known == path or known.startswith(f"{path}:"))
    notes[f"{path}:{again}" if again else path] = weights
