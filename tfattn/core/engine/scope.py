"""A scope in which all attention takes one path."""

import contextlib
import contextvars
import functools
from collections.abc import Callable
from typing import Any

import keras

from tfattn import _checks
from tfattn.core.engine import STREAMING_BACKENDS

# The open scopes, the innermost last. Scopes hold no state themselves, so that one object can be
# entered in several threads, and again within itself.
_open: contextvars.ContextVar[tuple["_Scope", ...]] = contextvars.ContextVar(
    "tfattn.attention_path", default=()
)


def attention_path(path: str | None) -> "_Scope":
    """A scope in which all attention takes one path.

        with tfattn.attention_path("dense"):
            archive.add_endpoint("serve", model.call, signature)

    Formats such as ONNX and LiteRT hold a single path. `model.export` writes them in the dense path
    by itself; other functions that trace a model for such a file belong in this scope.

    Every call in the scope takes this path, inside layers and models too, unless the call sets its
    own by `attend(path=...)` or `MultiHeadAttention(flash_attention=...)`. The innermost scope
    applies. A scope is also a decorator of functions.

    A call takes its path when it runs or is traced: a `tf.function` traced before the scope, such
    as the train function of `model.fit`, does not change, and a function traced in the scope keeps
    its path afterwards. The scope applies to its own thread, and not to the threads in which
    `tf.distribute.MirroredStrategy` trains.

    Args:
        path: "dense", which holds all scores at once and consists of plain operations; "streamed",
            block by block, except where weights are returned; or None, by size, as without a scope.
    Returns:
        A context manager that can be entered any number of times, within itself too.
    Raises:
        ValueError: `path` is not one of these, or is "streamed" with a backend that has only the
            dense path.
    Example:
        >>> tokens = np.ones((1, 7, 4), "float32")
        >>> with tfattn.attention_path("streamed"):
        ...     output = tfattn.attend(tokens, tokens)
        >>> tuple(output.shape)
        (1, 7, 4)
    """
    checked("tfattn.attention_path", path)
    if path == "streamed" and keras.backend.backend() not in STREAMING_BACKENDS:
        _checks.fail("tfattn.attention_path", "path", "be 'dense' or None with this backend", path)
    return _Scope(path)


class _Scope(contextlib.ContextDecorator):
    def __init__(self, path: str | None):
        self.path = path

    def __enter__(self) -> "_Scope":
        _open.set((*_open.get(), self))
        return self

    def __exit__(self, *error: object) -> None:
        # Not always the innermost: a generator that holds a scope may be closed within another.
        inner_first = list(reversed(_open.get()))
        if self in inner_first:
            inner_first.remove(self)
        _open.set(tuple(reversed(inner_first)))


def wanted() -> str | None:
    """The path of the innermost open scope; None without a scope."""
    return _open.get()[-1].path if _open.get() else None


def of_format(format: str) -> "_Scope":
    """The scope of an export: a SavedModel may hold both paths, other formats the dense path."""
    if format == "tf_saved_model":
        return attention_path(wanted())
    if wanted() == "streamed":
        expected = 'be "tf_saved_model" in the scope of the streamed path, for its loops'
        _checks.fail("export", "format", expected, format)
    return attention_path("dense")


def in_scope_of_format(export: Callable[..., Any]) -> Callable[..., Any]:
    """`keras.Model.export` in the scope of its format."""

    @functools.wraps(export)
    def wrapped(
        self: keras.Model, filepath: Any, format: str = "tf_saved_model", *args: Any, **kwargs: Any
    ) -> Any:
        with of_format(format):
            return export(self, filepath, format, *args, **kwargs)

    return wrapped


# A user's own models too hold attention, and a layer that is traced cannot know for which format:
# only this method is told. The scope has no effect on layers of others.
setattr(keras.Model, "export", in_scope_of_format(keras.Model.export))  # noqa: B010


def checked(who: str, path: Any) -> str | None:
    """The name of a path, or None."""
    # Not by `in` alone, which would compare an array element by element.
    if path is not None and not (isinstance(path, str) and path in ("dense", "streamed")):
        _checks.fail(who, "path", "be None, 'dense' or 'streamed'", path)
    return path
