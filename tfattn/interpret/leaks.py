"""A test of a model for leaks: changes what must not matter, and compares the outputs."""

import contextlib
import dataclasses
import functools
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from tfattn import _checks
from tfattn.interpret.gradients import Wrapper, wrapped
from tfattn.layers.attention.base import as_array
from tfattn.layers.base import flat_layers

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
    seed: int | None = 0,
) -> list[Leak]:
    """Changes what must not matter to a model; finds outputs that change, and the first layer.

    Changed are later positions, what stands under padding and how much there is of it, and other
    rows, to other numbers of the input and to large ones. Any Keras model will do; it runs eagerly,
    some 2 · (T + B) times, and is left as it was. Not thread-safe. Batch normalization, which mixes
    rows in training, uses its moving statistics then, and a warning says so.

    Args:
        model: a Keras model or layer, called as `model(inputs, training=training)`, or another
            function of the inputs, such as a loss, whose layers are not seen.
        inputs: ids or floats `(B, T, ...)`, or a list, tuple or dict of arrays, as the model takes
            them, with a small T that is no other size in the model.
        causal: True if outputs may depend on no later position of the input; of several inputs the
            name or number of that one, or a list of them; False for other models.
        padding: a number, the id or value of padding; or the lengths `(B,)` or the mask `(B, T)`,
            True = real, that are an input too; or a dict from names or numbers of inputs to these.
        rows: False for a model whose rows may depend on each other.
        training: True for runs with dropout, each from the same seed.
        tolerance: share of the largest number of an output by which it may change. Defaults to
            1e-5, in half precision to 1e-2.
        seed: int for the new numbers, or None for others in each call.
    Returns:
        list of `Leak`, at most one for each input and kind.
    Raises:
        ValueError: an argument does not fit the model; outputs are NaN, differ from run to run, or
            depend on nothing.
    Warns:
        UserWarning: batch normalization in training; a model that takes no shorter inputs.
    Example:
        >>> tokens = keras.Input((None,), dtype="int32")
        >>> x = keras.layers.Embedding(9, 4)(tokens)
        >>> model = keras.Model(tokens, MultiHeadAttention(2, 2, name="attention")(x, x))
        >>> ids = np.array([[1, 2, 3, 4, 5], [5, 4, 3, 2, 1]])
        >>> [(leak.kind, leak.layer) for leak in tfattn.interpret.find_leaks(model, ids)]
        [('future', 'attention')]
    """
    test = _Test(model, inputs, padding, _checks.seed(_WHO, seed))
    trials = [*map(test.positions, test.causal(causal)), *map(test.padding, test.padded)]
    trials += [test.rows()] if _checks.boolean(_WHO, "rows", rows) else []
    if tolerance is not None:
        test.tolerance = _checks.non_negative_number(_WHO, "tolerance", tolerance)
    with contextlib.ExitStack() as stack:
        test.start(stack, _checks.boolean(_WHO, "training", training))
        leaks = [leak for each in trials if (leak := test.first_leak(each))]
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

    def __init__(self, model: Any, inputs: Any, padding: Any, seed: int | None):
        if not callable(model):
            _checks.fail(_WHO, "model", "be a Keras model, a layer or a function", model)
        self.model, self.inputs, self.arrays = model, inputs, _named(inputs)
        self.random, self.size = np.random.default_rng(seed), len(next(iter(self.arrays.values())))
        each = padding if isinstance(padding, Mapping) else {None: padding}
        told = [x for x in each.values() if np.ndim(x)]
        tellers = [n for n, x in self.arrays.items() if any(np.array_equal(x, y) for y in told)]
        names = [n for n, x in self.arrays.items() if x.ndim > 1 and x.dtype != bool]
        names = [n for n in names if n not in tellers]
        ids = [n for n in names if self.arrays[n].dtype.kind in "iu" and not told]
        each = each if each is padding else dict.fromkeys(ids or names, padding)
        self.padded = {n: x for n, x in each.items() if x is not None}
        fits = all(np.asarray(x).dtype.kind in "biuf" for x in self.padded.values())
        fits = fits and len(tellers) >= len(told)
        self.real = {n: _real(self.arrays[n], self.padded.get(n)) for n in names if fits}  # (B, T)
        if any(self.real.get(n, np.True_).all() for n in self.padded):
            expected = "be a value that pads, or lengths (B,) or a mask (B, T) among the inputs"
            _checks.fail(_WHO, "padding", expected, padding)
        self.layers: list[Any] = []
        self.frozen: list[Wrapper] = []
        self.states: list[tuple[Any, np.ndarray]] = []  # which a run changes
        self.has_moved, self.tolerance, self.large = False, -1.0, 1000.0
        self.training = False

    def causal(self, causal: Any) -> list[Any]:
        """The names of inputs whose later positions must not matter."""
        names = list(self.real) if causal is True else [] if causal is False else causal
        names = list(names) if isinstance(names, list | tuple) else [names]
        if (causal is True and len(names) != 1) or not all(n in self.real for n in names):
            _checks.fail(_WHO, "causal", f"be False, or name one of {[*self.real]}", causal)
        return names

    def start(self, stack: contextlib.ExitStack, training: bool) -> None:
        """Runs the model as it is, twice."""
        whole: list[tuple[Any, np.ndarray]] = []
        if isinstance(self.model, keras.layers.Layer):
            if not all(layer.built for layer in flat_layers(self.model)):
                self.model(self.structured(self.arrays), training=False)
            self.layers = flat_layers(self.model)
            inner = [x for layer in self.layers for x in getattr(layer, "operations", ())]
            self.layers += [x for x in inner if not isinstance(x, keras.layers.Layer)]
            whole = [(v, np.array(ops.convert_to_numpy(v))) for v in self.model.variables]
            stack.callback(_restore, whole)
            self.model = functools.partial(self.model, training=training)
            self.frozen, self.training = _frozen(self.layers) if training else [], training
        is_half = {getattr(x, "compute_dtype", "") for x in self.layers} & {"float16", "bfloat16"}
        self.large = 30.0 if is_half else 1000.0  # finite in float16
        if self.tolerance < 0:
            self.tolerance = 1e-2 if is_half else 1e-5
        self.base = self.outputs(self.arrays)
        self.states = [x for x in whole if not np.array_equal(ops.convert_to_numpy(x[0]), x[1])]
        again = self.first_leak([_Trial("", "", {0: np.ones((self.size, 1), bool)}, self.arrays)])
        if again or any(np.isnan(x).any() for x in self.base):
            expected = f"return the same numbers again, from a seed ({again and again.layer!r})"
            _checks.fail(_WHO, "model", expected, self.model)

    def structured(self, arrays: Arrays) -> Any:
        """Tensors as the model takes them."""
        tensors = {name: ops.convert_to_tensor(x) for name, x in arrays.items()}
        if isinstance(self.inputs, list | tuple):
            return type(self.inputs)(tensors.values())
        return tensors if isinstance(self.inputs, Mapping) else tensors[0]

    def outputs(self, arrays: Arrays, wrappers: Sequence[Wrapper] = ()) -> list[np.ndarray]:
        """The outputs of a run, from the same state."""
        _restore(self.states)
        with wrapped([*self.frozen, *wrappers]), _seeded():
            return _arrays(self.model(self.structured(arrays)))

    def others(self, names: Iterable[Any], mask: Any, large: bool, real: bool = True) -> Arrays:
        """The inputs, some with other numbers of theirs or large ones, in a mask and where real."""
        arrays = dict(self.arrays)
        for name in names:
            x = arrays[name]
            seen = np.unique(x[self.real[name]])
            shift = self.random.integers(1, max(len(seen), 2), x.shape)
            new = seen[(np.searchsorted(seen, x) + shift) % len(seen)]
            if large and x.dtype.kind not in "iu":
                new = self.random.choice([-1, 1], x.shape) * self.large * np.abs(seen).max()
            places = mask & (self.real[name] == real)  # (B, T)
            places = places.reshape(*places.shape, *[1] * (x.ndim - 2))
            arrays[name] = np.where(places, new, x).astype(x.dtype)
        return arrays

    def kept(self, rows: Any = True) -> dict[int, np.ndarray]:
        """What is real in these rows."""
        kept = {0: np.broadcast_to(rows, self.size)[:, None]}
        for real in self.real.values():
            kept[real.shape[1]] = kept.get(real.shape[1], kept[0]) & real
        return kept

    def positions(self, name: Any) -> Iterator[_Trial]:
        """Changes of a position, which no output at an earlier one may follow."""
        length = self.arrays[name].shape[1]
        steps, kept = np.arange(length), self.kept()[length]
        if not any(length in x.shape[1:] for x in self.base):
            _checks.fail(_WHO, "causal", f"be False: no output has {length} positions", name)
        for step, large in itertools.product(steps[1:], (False, True)):
            arrays = self.others([name], steps == step, large)
            source = f"position {step} of input {name!r}"
            yield _Trial("future", source, {length: kept & (steps < step)}, arrays)

    def rows(self) -> Iterator[_Trial]:
        """Changes of a row, which no other row may follow."""
        if self.size < 2:
            _checks.fail(_WHO, "inputs", "have 2 rows, or pass `rows=False`", self.size)
        for row, large in itertools.product(range(self.size), (False, True)):
            mask = np.arange(self.size)[:, None] == row
            yield _Trial("rows", f"row {row}", {0: ~mask}, self.others(self.real, mask, large))

    def padding(self, name: Any) -> Iterator[_Trial]:
        """Changes of what stands under padding, which nothing real may follow; then less of it."""
        source, kept = f"what stands under the padding of input {name!r}", self.kept()
        if np.ndim(self.padded[name]):
            for large in (False, True):
                arrays = self.others([name], True, large, real=False)
                yield _Trial("padding", source, kept, arrays)
        else:
            yield _Trial("padding", source, kept, self.arrays, self.embedded(name))
        yield from self.shorter(name)

    def embedded(self, name: Any) -> list[Wrapper]:
        """Layers that embed this input, with large numbers for its padding."""
        padded = ops.convert_to_tensor(~self.real[name][..., None])

        def wrap(call: Callable[..., Any]) -> Callable[..., Any]:
            def embed(ids: Any, *args: Any, **kwargs: Any) -> Any:
                x, seen = call(ids, *args, **kwargs), as_array(ids)
                if seen is None or not np.array_equal(seen, self.arrays[name]):
                    return x
                return ops.where(padded, self.large * ops.max(ops.abs(x)), x)

            return embed

        kinds = (keras.layers.Embedding, keras.layers.Masking)
        return [(layer, wrap) for layer in self.layers if isinstance(layer, kinds)]

    def shorter(self, name: Any) -> Iterator[_Trial]:
        """The inputs beside those with less padding."""
        real, counts = self.real[name], self.real[name].sum(1)
        length = counts.max() if counts.max() < real.shape[1] else counts[counts > 0].min()
        is_random = self.states or (self.training and keras.backend.backend() == "torch")
        if is_random or (real != (np.arange(real.shape[1]) < counts[:, None])).any():
            return  # other lengths have other dropout; padding at the start moves positions
        arrays = dict(self.arrays)
        for other, x in arrays.items():
            own = self.real[other] if other in self.padded else real
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
        kept[length] = kept.get(length, kept[0]) & np.ones((1, length), bool)
        source = f"the amount of padding of input {name!r}"
        yield _Trial("padding", source, kept, self.arrays, base=arrays)

    def first_leak(self, trials: Iterable[_Trial]) -> Leak | None:
        """The leak of the first trial that has one."""
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

        def wrapper(layer: Any, trace: dict[Any, Any]) -> Wrapper:
            def recorded(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
                outputs, path = call(*args, **kwargs), getattr(layer, "path", None) or layer.name
                number = sum(key[0] == path for key in trace)
                trace[path, number] = _arrays((args, kwargs)), _arrays(outputs)
                return outputs

            return layer, lambda call: functools.partial(recorded, call)

        runs = (trial.base or self.arrays, ()), (trial.arrays, trial.wrappers)
        for trace, (arrays, wrappers) in zip(traces, runs, strict=True):
            self.outputs(arrays, [*wrappers, *(wrapper(layer, trace) for layer in self.layers)])
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
    for name, x in items.items():
        argument = f"inputs[{name!r}]" if many else "inputs"
        _checks.array(_WHO, argument, x, "(B, ...)", booleans=True)
        if not x.shape or 0 in x.shape or len(x) != len(next(iter(items.values()))):
            _checks.fail(_WHO, argument, "have shape (B, ...), with the B of all", tuple(x.shape))
    return {name: np.array(ops.convert_to_numpy(x)) for name, x in items.items()}


def _real(x: np.ndarray, padding: Any) -> np.ndarray:
    """Where an input is real, `(B, T)`."""
    told, steps = np.asarray(padding), np.arange(x.shape[1])
    if padding is None or told.ndim == 0:
        return (x != padding).reshape(*x.shape[:2], -1).any(-1)
    return np.broadcast_to(told != 0 if told.ndim > 1 else steps < told[:, None], x.shape[:2])


def _frozen(layers: list[Any]) -> list[Wrapper]:
    """Batch normalization in training, by its moving statistics."""
    found = [x for x in layers if isinstance(x, keras.layers.BatchNormalization) and x.trainable]
    if found:
        message = "mixes the rows of a batch, which is no leak; here moving statistics are used:"
        paths = [x.path for x in found]
        warnings.warn(f"{_WHO}: batch normalization in training {message} {paths}", stacklevel=4)
    return [(x, lambda call: lambda *a, **k: call(*a, **{**k, "training": False})) for x in found]


def _arrays(tensors: Any) -> list[np.ndarray]:
    """The tensors of a structure whose numbers are known, in float64."""
    arrays = [as_array(x) for x in keras.tree.flatten(tensors) if hasattr(x, "shape")]
    return [x.astype("float64") for x in arrays if x is not None and x.dtype.kind in "biufV"]


@contextlib.contextmanager
def _seeded() -> Iterator[None]:
    """The same numbers of PyTorch's own generator, which dropout without a seed uses."""
    if keras.backend.backend() != "torch":
        yield
        return
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def _restore(states: list[tuple[Any, np.ndarray]]) -> None:
    for variable, value in states:
        variable.assign(value)


def _change(
    first: list[np.ndarray], second: list[np.ndarray], kept: Kept, tolerance: float
) -> tuple[str, float] | None:
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
        places = np.argwhere(size > tolerance * scale).tolist()
        if places:
            place = min(places, key=lambda place: (place[axis : axis + 1], place))
            words = f"output {number}" if len(first) > 1 else "the output"
            words += f" in row {place[0]}" if place else ""
            words += f" at position {place[axis]}" if axis else ""
            return words, float(size.max() / (scale or 1.0))
    return None
