"""A scope in which all attention takes one path."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import keras

from tfattn import _checks
from tfattn.core.engine import STREAMING_BACKENDS

__all__ = ["path", "wanted"]

# The paths of the scopes that are open here, the innermost last. A tuple, so that a scope holds
# nothing itself: one object can be entered in several threads, and again within itself.
_open: contextvars.ContextVar[tuple[str | None, ...]] = contextvars.ContextVar(
    "tfattn.path", default=()
)


def path(path: str | None) -> contextlib.ContextDecorator:
    """A scope in which all attention takes one path: for files that can hold but one.

        with tfattn.path("dense"):
            model.export("model.onnx", format="onnx")

    What is called in the scope takes this path, inside of layers and models too, where it names
    none itself, as `attend(path=...)` and `MultiHeadAttention(flash_attention=...)` do. The inner
    scope counts. It is also a decorator of functions.

    A call takes its path when it runs, or when it is traced: a `tf.function` that was traced
    before, as `model.fit` and `model.predict` keep theirs, stays as it is, and one that was traced
    in the scope stays so after it. The scope is seen by its own thread and not by others, which
    `tf.distribute.MirroredStrategy` trains in.

    Args:
        path: "dense", which holds all scores at once and is made of plain operations; "streamed",
            block by block, except where weights are returned; or None, by size, as it is without a
            scope.
    Returns:
        A context manager, which is entered any number of times, within itself too.
    Raises:
        ValueError: `path` is none of these, or is "streamed" with a backend that has only the
            dense one.
    Example:
        >>> tokens = np.ones((1, 7, 4), "float32")
        >>> with tfattn.path("streamed"):
        ...     output = tfattn.attend(tokens, tokens)
        >>> tuple(output.shape)
        (1, 7, 4)
    """
    checked("tfattn.path", path)
    if path == "streamed" and keras.backend.backend() not in STREAMING_BACKENDS:
        _checks.fail("tfattn.path", "path", "be 'dense' or None with this backend", path)
    return _Scope(path)


class _Scope(contextlib.ContextDecorator):
    def __init__(self, path: str | None):
        self.path = path

    def __enter__(self) -> "_Scope":
        _open.set((*_open.get(), self.path))
        return self

    def __exit__(self, *error: object) -> None:
        _open.set(_open.get()[:-1])


def wanted() -> str | None:
    """The path of the innermost scope that is open here; None without one."""
    return (_open.get() or (None,))[-1]


@contextlib.contextmanager
def of_export(format: str) -> Iterator[None]:
    """The scope of a model's export: a SavedModel may hold both paths, other formats the dense one,
    unless a scope is open that names another.

    Raises:
        ValueError: the exporters of PyTorch, which fail in many ways, failed.
    """
    with path(wanted() or (None if format == "tf_saved_model" else "dense")):
        try:
            yield
        except Exception as error:
            if keras.backend.backend() != "torch" or isinstance(error, ImportError | OSError):
                raise
            expected = (
                "be one that Keras writes of this model on PyTorch; for the others save it, and "
                'load it with KERAS_BACKEND="tensorflow" and load_model(path, compile=False)'
            )
            _checks.fail("export", "format", expected, format)


def checked(who: str, path: Any) -> str | None:
    """The name of a path, or None."""
    # Not by `in` alone, which compares: an array would be compared element by element.
    if path is not None and not (isinstance(path, str) and path in ("dense", "streamed")):
        _checks.fail(who, "path", "be None, 'dense' or 'streamed'", path)
    return path
