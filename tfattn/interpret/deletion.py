"""A test of importance: deletes the most important candidates, and as many at random."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from keras import ops

from tfattn import _checks
from tfattn._types import ArrayLike

_WHO = "deletion_test"


@dataclasses.dataclass(frozen=True)
class DeletionTest:
    """The result of `deletion_test`.

    Attributes:
        deleted: the most important candidates, in the form that `measure` received.
        intact: the measure without a deletion.
        named: the measure without the most important candidates.
        random: `(R,)`, the measure without as many random candidates.
    """

    deleted: Any
    intact: float
    named: float
    random: np.ndarray

    @property
    def p_value(self) -> float:
        """The share of random deletions that change the measure at least as much.

            p = (1 + number of random deletions with |random − intact| ≥ |named − intact|) / (1 + R)

        Near 0.5 the importance is no better than a random one.
        """
        changes = np.abs(self.random - self.intact) >= abs(self.named - self.intact)
        return float((1 + np.sum(changes)) / (1 + len(self.random)))

    def __str__(self) -> str:
        random = f"{self.random.mean():.4g} ({self.random.min():.4g} to {self.random.max():.4g})"
        return (
            f"intact: {self.intact:.4g}, without the most important: {self.named:.4g}, "
            f"without as many at random: {random}, p = {self.p_value:.2g}"
        )


def deletion_test(
    measure: Callable[[Any], float],
    importance: ArrayLike | Mapping[str, ArrayLike],
    size: int,
    *,
    candidates: ArrayLike | Mapping[str, ArrayLike] | None = None,
    num_random: int = 20,
    seed: int | None = 0,
) -> DeletionTest:
    """Deletes the most important heads or tokens, and for comparison as many at random.

    If an importance is meaningful, the measure changes more without the most important candidates.
    Models are not trained on such inputs (Hooker et al. 2019, arXiv:1806.10758).

    Args:
        measure: function from the deleted candidates to a number, such as a loss or a score. For
            heads it receives a dict, as `without_heads` takes it; for tokens a bool array in the
            shape of `importance`, True = deleted.
        importance: of heads, a dict from the layer to `(H,)`, as from `head_importance`, ranked
            over all layers; or of tokens, `(T,)`, or `(B, T)`, ranked in each row.
        size: positive int, the number of deleted heads, or of deleted tokens per row (or all).
        candidates: bool, in the structure of `importance`: False, as for padding, is not deleted.
        num_random: positive int R, the number of random deletions.
        seed: int, or None for a new one per call. Defaults to 0.
    Returns:
        `DeletionTest`; its `str` describes it.
    Raises:
        ValueError: a number is not finite, `candidates` do not fit, or `size` leaves no choice.
    Example:
        >>> counts = np.array([5.0, 1.0, 1.0, 1.0])
        >>> test = tfattn.interpret.deletion_test(lambda gone: counts[~gone].sum(), counts, size=1)
        >>> print(test.intact, test.named, test.deleted)
        8.0 3.0 [ True False False False]

    Source: erasure, Li, Monroe and Jurafsky 2016, arXiv:1612.08220; compared with random deletions,
    Serrano and Smith 2019, arXiv:1906.03731.
    """
    size = _checks.positive_int(_WHO, "size", size)
    num_random = _checks.positive_int(_WHO, "num_random", num_random)
    generator = np.random.default_rng(_checks.seed(_WHO, seed))
    numbers = _numbers(importance)
    allowed = _allowed(candidates, importance, numbers.shape)
    if not (allowed.sum(axis=-1) > size).any():
        most = int(allowed.sum(axis=-1).max(initial=0))
        _checks.fail(_WHO, "size", f"be below the number of candidates, {most}", size)

    def measured(deleted: np.ndarray) -> float:
        value = float(measure(_as_given(deleted, importance)))
        return _checks.finite_number(_WHO, "measure", value)

    named = _largest(numbers, allowed, size)
    draws = [_largest(generator.random(numbers.shape), allowed, size) for _ in range(num_random)]
    return DeletionTest(
        deleted=_as_given(named, importance),
        intact=measured(np.zeros_like(named)),
        named=measured(named),
        random=np.array([measured(drawn) for drawn in draws]),
    )


def _numbers(importance: Any) -> np.ndarray:
    """The importance as finite numbers, `(T,)` or `(B, T)`; of all layers in one row."""
    if not isinstance(importance, Mapping):
        _checks.array(_WHO, "importance", importance, "(T,), (B, T), or a dict to (H,)")
        _checks.rank(_WHO, "importance", importance.shape, (1, 2), "(T,) or (B, T)")
        numbers = ops.convert_to_numpy(importance)
    else:
        for path, layer in importance.items():
            _checks.rank(_WHO, f"importance[{path!r}]", np.shape(layer), (1,), "(H,)")
        numbers = np.concatenate([ops.convert_to_numpy(x) for x in importance.values()])
    numbers = numbers.astype("float64")
    if not np.isfinite(numbers).all():
        _checks.fail(_WHO, "importance", "hold finite numbers", importance)
    return numbers


def _allowed(candidates: Any, importance: Any, shape: tuple[int, ...]) -> np.ndarray:
    """The candidates in the shape of the numbers."""
    if candidates is None:
        return np.ones(shape, bool)
    given = candidates
    if isinstance(importance, Mapping):
        _checks.mapping(_WHO, "candidates", candidates, importance)
        layers = [ops.convert_to_numpy(candidates[path]) for path in importance]
        given = np.concatenate([np.atleast_1d(x) for x in layers])
    given = ops.convert_to_numpy(given)
    if given.dtype != bool or given.shape != shape:
        expected = f"be boolean, in the shape of `importance`, {shape} (`x != 0` is boolean)"
        _checks.fail(_WHO, "candidates", expected, f"{given.dtype}, of shape {given.shape}")
    return given


def _largest(numbers: np.ndarray, allowed: np.ndarray, size: int) -> np.ndarray:
    """Whether each number is one of the `size` largest allowed ones of its row."""
    order = np.argsort(-np.where(allowed, numbers, -np.inf), axis=-1, kind="stable")
    chosen = np.zeros(numbers.shape, bool)
    np.put_along_axis(chosen, order[..., :size], True, axis=-1)
    return chosen & allowed


def _as_given(deleted: np.ndarray, importance: Any) -> Any:
    """The deletions in the form that `measure` receives."""
    if not isinstance(importance, Mapping):
        return deleted
    ends = np.cumsum([len(layer) for layer in importance.values()])[:-1]
    parts = dict(zip(importance, np.split(deleted, ends), strict=True))
    return {path: np.flatnonzero(part).tolist() for path, part in parts.items() if part.any()}
