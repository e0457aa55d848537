"""A test of a model for leaks: changes what must not matter, and compares the outputs."""

import contextlib
import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from tfattn import _checks
from tfattn.layers.attention.base import as_array
from tfattn.layers.base import Wrapper, flat_layers, wrapped

_WHO = "find_leaks"
Arrays = dict[Any, np.ndarray]  # by the name or number of an input
Kept = Mapping[int, np.ndarray]  # what must stay: (B, n) of an axis of size n; at 0 (B, 1) of rows


@dataclasses.dataclass(frozen=True)
class Leak:
    """What reaches an output and must not; `str` says it in a sentence.

    Attributes:
        kind: "future", "padding" or "rows".
        source, output: what was changed, and the first place that changed with it.
        size: the largest change, as a share of the largest number of that output.
        layer: path of the first layer whose output changed where its inputs did not, or None.
    """

    kind: str
    source: str
    output: str
    size: float
    layer: str | None

    def __str__(self) -> str:
        layer = f", first in layer {self.layer!r}" if self.layer else ""
        return f"{self.kind}: {self.source} changes {self.output} by {self.size:.2g}{layer}"


def find_leaks(
    model: Any,
    inputs: Any,
    *,
    causal: Any = True,
    padding: Any = None,
    rows: bool = True,
    training: bool = False,
    tolerance: float | None = None,
) -> list[Leak]:
    """Changes what must not matter to a model; finds outputs that change, and the first layer.

    Changed are later positions, padding (what stands there and, in evaluation, how much is at the
    end) and other rows, to other numbers of the input and to large ones. The model runs eagerly,
    some 2 · (T + B) times, and is left as it was. Warnings say what is left out. Not thread-safe.

    Args:
        model: a Keras model or layer, called with `training`, or a function, such as a loss.
        inputs: ids or floats `(B, T, ...)`, or a list, tuple or dict; T no other size in the model.
        causal: False if outputs may look ahead; of several inputs the target's name or number.
        padding: the id or value of padding, or lengths `(B,)` or a mask `(B, T)`, True = real; or a
            dict from names or numbers of inputs to these.
        rows: False for a model whose rows may depend on each other.
        training: True for runs with dropout, from one seed; batch normalization as in evaluation.
        tolerance: share of the largest number of an output by which it may change. Defaults to
            1e-5, in half precision to 1e-2.
    Returns:
        list of `Leak`, at most one for each input and kind.
    Raises:
        ValueError: an argument does not fit; outputs are NaN, random, or depend on nothing.
    Example:
        >>> tokens = keras.Input((None,), dtype="int32")
        >>> x = keras.layers.Embedding(9, 4)(tokens)
        >>> model = keras.Model(tokens, MultiHeadAttention(2, 2, name="attention")(x, x))
        >>> ids = np.array([[1, 2, 3, 4, 5], [5, 4, 3, 2, 1]])
        >>> [(leak.kind, leak.layer) for leak in tfattn.interpret.find_leaks(model, ids)]
        [('future', 'attention')]
    """
    test = _Test(model, inputs, padding, _checks.boolean(_WHO, "rows", rows))
    trials = [] if causal is False else [test.positions(causal)]
    trials += [*map(test.padding, test.padded), *([test.rows()] if rows else [])]
    if not trials:
        _checks.fail(_WHO, "causal", "be True or an input, without `padding` and `rows`", causal)
    with contextlib.ExitStack() as stack:
        test.start(stack, _checks.boolean(_WHO, "training", training), tolerance)
        leaks = [leak for each in trials if (leak := test.first_leak(each))]
        if not test.has_moved:  # changes of padding alone move nothing
            test.first_leak(test.changes("", "", {}, test.real))
    if not test.has_moved:
        _checks.fail(_WHO, "model", "depend on its inputs", model)
    return leaks


def assert_no_leaks(model: Any, inputs: Any, **kwargs: Any) -> None:
    """Raises an error with the sentences of `find_leaks` if it finds leaks, for a test suite.

    Args:
        model, inputs, **kwargs: those of `find_leaks`.
    Raises:
        AssertionError: there is a leak.
    Example:
        >>> model = CausalLM(9, num_layers=1, width=8, num_heads=2, hidden_dim=8)
        >>> ids = np.array([[1, 2, 3, 4, 5], [5, 4, 3, 0, 0]])
        >>> tfattn.interpret.assert_no_leaks(model, ids, padding=0)
    """
    if leaks := find_leaks(model, inputs, **kwargs):
        raise AssertionError("\n".join(map(str, leaks)))


class _Trial(NamedTuple):
    """A run that must agree with another one where outputs are kept."""

    kind: str
    source: str
    kept: Kept
    arrays: Arrays
    wrappers: Sequence[Wrapper] = ()
    base: Arrays | None = None  # the inputs of the other run


class _Test:
    """A model, its inputs, and the trials that it has to pass."""

    def __init__(self, model: Any, inputs: Any, padding: Any, rows: bool):
        if not callable(model):
            _checks.fail(_WHO, "model", "be a Keras model, a layer or a function", model)
        self.model, self.inputs, self.arrays, self.mixes = model, inputs, _named(inputs), not rows
        self.random, self.size = np.random.default_rng(0), len(next(iter(self.arrays.values())))
        values = padding.values() if isinstance(padding, Mapping) else [padding]
        names = [n for n, x in self.arrays.items() if x.ndim > 1 and x.dtype != bool]
        names = [n for n in names if not any(np.array_equal(self.arrays[n], x) for x in values)]
        ids = [n for n in names if self.arrays[n].dtype.kind in "iu"]
        each = padding if isinstance(padding, Mapping) else dict.fromkeys(ids or names, padding)
        self.padded = {n: x for n, x in each.items() if x is not None}
        self.real = {n: _real(self.arrays[n], self.padded.get(n)) for n in names}  # (B, T)
        for n in self.padded:
            if self.real.get(n, np.True_).all() or not self.real[n].any():
                _checks.fail(_WHO, "padding", f"hide a part of input {n!r}, or be a dict", padding)
        self.layers: list[Any] = []
        self.states: list[tuple[Any, np.ndarray]] = []  # which a run changes
        self.has_moved, self.training, self.by_input = False, False, isinstance(padding, Mapping)
        self.reseed: Callable[[], Any] = lambda: None

    def start(self, stack: contextlib.ExitStack, training: bool, tolerance: float | None) -> None:
        """Runs the model as it is, twice."""
        if isinstance(self.model, keras.layers.Layer):
            if not all(layer.built for layer in flat_layers(self.model)):
                self.model(self.structured(self.arrays), training=False)
            self.layers = flat_layers(self.model)
            inner = [x for layer in self.layers for x in getattr(layer, "operations", ())]
            self.layers += [x for x in inner if not isinstance(x, keras.layers.Layer)]
            self.states = [(v, np.array(ops.convert_to_numpy(v))) for v in self.model.variables]
            stack.callback(_restore, self.states)
            self.model, self.training = functools.partial(self.model, training=training), training
            norms = [x for x in self.layers if isinstance(x, keras.layers.BatchNormalization)]
            if norms := [x for x in norms if x.trainable and training]:
                message = "batch normalization in training mixes rows; uses moving statistics here:"
                warnings.warn(f"{_WHO}: {message} {[x.path for x in norms]}", stacklevel=3)
            frozen = [(x, lambda call, *a, **k: call(*a, **k | {"training": False})) for x in norms]
            stack.enter_context(wrapped(frozen))
        if keras.backend.backend() == "torch":  # dropout without a seed uses its own generator
            import torch

            stack.enter_context(torch.random.fork_rng())
            self.reseed = functools.partial(torch.manual_seed, 0)
        is_half = {getattr(x, "compute_dtype", "") for x in self.layers} & {"float16", "bfloat16"}
        self.large, default = (30.0, 1e-2) if is_half else (1000.0, 1e-5)  # finite in float16
        tolerance = default if tolerance is None else tolerance
        self.tolerance = _checks.non_negative_number(_WHO, "tolerance", tolerance)
        self.base = self.outputs(self.arrays)
        self.states = [(v, x) for v, x in self.states if (ops.convert_to_numpy(v) != x).any()]
        again = self.first_leak([_Trial("", "", {0: np.ones((self.size, 1), bool)}, self.arrays)])
        same = f"return the same numbers again, from a seed ({again.layer!r})" if again else ""
        if same or any(np.isnan(x).any() for x in self.base):
            given = getattr(self.model, "func", self.model)
            _checks.fail(_WHO, "model", same or "return no NaN", given)

    def structured(self, arrays: Arrays) -> Any:
        tensors = {name: ops.convert_to_tensor(x) for name, x in arrays.items()}
        if isinstance(self.inputs, list | tuple):
            return type(self.inputs)(tensors.values())
        return tensors if isinstance(self.inputs, Mapping) else tensors[0]

    def outputs(self, arrays: Arrays, wrappers: Sequence[Wrapper] = ()) -> list[np.ndarray]:
        _restore(self.states)
        self.reseed()
        with wrapped(wrappers):
            return _arrays(self.model(self.structured(arrays)))

    def changes(self, kind: str, source: str, kept: Kept, places: Arrays) -> Iterator[_Trial]:
        """Other numbers at these places `(B, T)` of inputs, then large ones."""
        for large in (False, True):
            arrays = dict(self.arrays)
            for name, mask in places.items():
                x = arrays[name]
                seen = np.unique(x[self.real[name]])
                shift = self.random.integers(1, max(len(seen), 2), x.shape)
                new = seen[(np.searchsorted(seen, x) + shift) % len(seen)]
                if large and x.dtype.kind not in "iu":
                    new = self.random.choice([-1, 1], x.shape) * self.large * np.abs(seen).max()
                mask = mask.reshape(*mask.shape, *[1] * (x.ndim - 2))
                arrays[name] = np.where(mask, new, x).astype(x.dtype)
                if large and len(places) == 1 and mask.any() and np.array_equal(arrays[name], x):
                    _checks.fail(_WHO, f"inputs[{name!r}]", "hold different numbers", x)
            yield _Trial(kind, source, kept, arrays)

    def kept(self, rows: Any = True) -> dict[int, np.ndarray]:
        kept = {0: np.broadcast_to(rows, self.size)[:, None]}
        for real in self.real.values():
            kept[real.shape[1]] = kept.get(real.shape[1], kept[0]) & real
        return kept

    def positions(self, name: Any) -> Iterator[_Trial]:
        """Changes of a position, which no output at an earlier one may follow."""
        names = [*self.real]
        name = names[0] if name is True and len(names) == 1 else name
        if name is True or name not in names:
            _checks.fail(_WHO, "causal", f"be False, or name one of {names}", name)
        real, length = self.real[name], self.arrays[name].shape[1]
        steps, kept = np.arange(length), self.kept()[length]
        if not any(length in x.shape[1:] for x in self.base):
            _checks.fail(_WHO, "causal", f"be False: no output has {length} positions", name)
        for step in steps[1:]:
            source, earlier = f"position {step} of input {name!r}", {length: kept & (steps < step)}
            yield from self.changes("future", source, earlier, {name: real & (steps == step)})

    def rows(self) -> Iterator[_Trial]:
        if self.size < 2:
            _checks.fail(_WHO, "inputs", "have 2 rows, or pass `rows=False`", self.size)
        for row in range(self.size):
            is_row = np.arange(self.size)[:, None] == row
            places = {name: real & is_row for name, real in self.real.items()}
            yield from self.changes("rows", f"row {row}", {0: ~is_row}, places)

    def padding(self, name: Any) -> Iterator[_Trial]:
        """Changes of what stands under padding, which nothing real may follow; then less of it."""
        source, kept = f"what stands under the padding of input {name!r}", self.kept()
        told, is_ids = self.padded[name], self.arrays[name].dtype.kind in "iu"
        is_input = any(np.array_equal(told, x) for x in self.arrays.values())
        if np.ndim(told) and (is_input or not is_ids):  # else ids of padding say what is hidden
            yield from self.changes("padding", source, kept, {name: ~self.real[name]})
        else:
            self.is_embedded = not self.layers
            yield _Trial("padding", source, kept, self.arrays, self.embedded(name))
            if not self.is_embedded:
                message = f"{_WHO}: not tested: {source}, which no Embedding or Masking gets"
                warnings.warn(message, stacklevel=4)
        yield from self.shorter(name)

    def embedded(self, name: Any) -> list[Wrapper]:
        """Layers that embed this input, with large numbers for its padding."""
        padded = ops.convert_to_tensor(~self.real[name][..., None])

        def embed(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            x, (ids, *_) = call(*args, **kwargs), (*args, *kwargs.values())
            is_input = np.array_equal(np.asarray(as_array(ids)), self.arrays[name])
            self.is_embedded |= is_input
            return ops.where(padded, self.large * ops.max(ops.abs(x)), x) if is_input else x

        kinds = (keras.layers.Embedding, keras.layers.Masking)
        return [(layer, embed) for layer in self.layers if isinstance(layer, kinds)]

    def shorter(self, name: Any) -> Iterator[_Trial]:
        """The inputs beside those with less padding."""
        real, counts = self.real[name], self.real[name].sum(1)
        length = counts.max() if counts.max() < real.shape[1] else counts[counts > 0].min()
        if counts.max() > length and self.mixes:
            return  # a row would lose tokens that others may see
        is_at_the_end = np.array_equal(real, np.arange(real.shape[1]) < counts[:, None])
        if self.training or self.states or not is_at_the_end:
            return  # other lengths have other dropout; padding at the start moves positions
        arrays = dict(self.arrays)
        for other, x in arrays.items():
            own = self.real.get(other, real) if self.by_input or other in self.padded else real
            if x.shape[1:2] == real.shape[1:] and np.array_equal(own, real):
                arrays[other] = x[:, :length]
            elif np.array_equal(x, counts):
                arrays[other] = np.minimum(x, length)
        try:
            self.outputs(arrays)
        except Exception as error:
            warnings.warn(f"{_WHO}: not tested with less padding: {str(error)[:200]}", stacklevel=5)
            return
        kept = self.kept((counts <= length) & (counts > 0))
        kept[length] = kept.get(length, kept[0]) & real[:, :length]
        source = f"the amount of padding of input {name!r}"
        yield _Trial("padding", source, kept, self.arrays, base=arrays)

    def first_leak(self, trials: Iterable[_Trial]) -> Leak | None:
        for trial in trials:
            first = self.base if trial.base is None else self.outputs(trial.base)
            second = self.outputs(trial.arrays, trial.wrappers)
            self.has_moved |= not all(map(np.array_equal, first, second))
            if change := _change(first, second, trial.kept, self.tolerance):
                return Leak(trial.kind, trial.source, *change, self.first_layer(trial))
        return None

    def first_layer(self, trial: _Trial) -> str | None:
        """The first layer whose outputs change where they are kept, though its inputs do not."""
        traces: list[dict[Any, Any]] = [{}, {}]

        def record(trace: Any, layer: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
            outputs, path = call(*args, **kwargs), getattr(layer, "path", None) or layer.name
            number = sum(key[0] == path for key in trace)
            trace[path, number] = _arrays((args, kwargs)), _arrays(outputs)
            return outputs

        runs = (trial.base or self.arrays, ()), (trial.arrays, trial.wrappers)
        for trace, (arrays, wrappers) in zip(traces, runs, strict=True):
            recorders = [(x, functools.partial(record, trace, x)) for x in self.layers]
            self.outputs(arrays, [*wrappers, *recorders])
        for key, pair in traces[0].items():
            both = zip(pair, traces[1].get(key, pair), strict=True)
            before, after = (_change(*x, trial.kept, self.tolerance) for x in both)
            if after and not before:
                return key[0]
        return None


def _named(inputs: Any) -> Arrays:
    """The inputs by name or number."""
    many = isinstance(inputs, Mapping | list | tuple)
    items = dict(inputs if isinstance(inputs, Mapping) else enumerate(inputs if many else [inputs]))
    if not items:
        _checks.fail(_WHO, "inputs", "have one array or more", inputs)
    for name, x in items.items():
        argument = f"inputs[{name!r}]"
        _checks.array(_WHO, argument, x, "(B, ...)", booleans=True)
        if not x.shape or 0 in x.shape or len(x) != len(next(iter(items.values()))):
            _checks.fail(_WHO, argument, "have shape (B, ...), with the B of all", tuple(x.shape))
    return {name: np.array(ops.convert_to_numpy(x)) for name, x in items.items()}


def _real(x: np.ndarray, padding: Any) -> np.ndarray:
    """Where an input is real, `(B, T)`."""
    told, steps = np.asarray(padding), np.arange(x.shape[1])
    if told.shape not in ((), x.shape[:1], x.shape[:2]):
        _checks.fail(_WHO, "padding", f"have shape {x.shape[:1]} or {x.shape[:2]}", told.shape)
    if padding is None or told.ndim == 0:
        return (x != padding).reshape(*x.shape[:2], -1).any(-1)
    return np.broadcast_to(told != 0 if told.ndim > 1 else steps < told[:, None], x.shape[:2])


def _arrays(tensors: Any) -> list[np.ndarray]:
    """The tensors of a structure whose numbers are known, in float64."""
    arrays = [as_array(x) for x in keras.tree.flatten(tensors) if hasattr(x, "shape")]
    return [x.astype("float64") for x in arrays if x is not None and x.dtype.kind in "biufV"]


def _restore(states: list[tuple[Any, np.ndarray]]) -> None:
    for variable, value in states:
        variable.assign(value)


def _change(first: Any, second: Any, kept: Kept, tolerance: float) -> tuple[str, float] | None:
    """The first place where what is kept changes, and the size of the largest change."""
    for number, (x, y) in enumerate(zip(first, second, strict=False)):
        y = y[tuple(map(slice, x.shape))] if x.ndim == y.ndim else y
        axis = next((a for a in range(1, x.ndim) if x.shape[a] in kept), 0)
        mask: Any = kept.get(x.shape[axis] if axis else 0)
        if mask is None or x.shape != y.shape or x.shape[:1] not in (mask.shape[:1], ()):
            continue
        sizes = [mask.shape[min(a, 1)] if a in (0, axis) else 1 for a in range(x.ndim)]
        mask = mask.reshape(sizes) if x.ndim else mask.all()  # a number is of all rows
        with np.errstate(invalid="ignore"):
            size = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, np.abs(x - y))
        size = np.where(mask, np.nan_to_num(size, nan=np.inf), 0.0)
        scale = np.abs(np.where(mask & np.isfinite(x), x, 0)).max(initial=0)
        if places := np.argwhere(size > tolerance * scale).tolist():
            place = min(places, key=lambda place: (place[axis : axis + 1], place))
            words = f"output {number}" if len(first) > 1 else "the output"
            words += f" in row {place[0]}" if place else ""
            words += f" at position {place[axis]}" if axis else ""
            return words, float(size.max() / (scale or 1.0))
    return None
