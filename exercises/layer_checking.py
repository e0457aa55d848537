"""Compares a layer with the package's layer of the same weights, and reports the first difference.

The layer is built, called, saved, loaded, and trained for a step in a model whose masks Keras
passes on. Numbers that differ are compared with those of an oracle that makes a known mistake.
"""

import contextlib
import inspect
import logging
import re
import secrets
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from exercises.checking import raised, short
from exercises.exercise import LayerExercise, Setting
from exercises.messages import Fault

_OF_THE_CLASS = {
    *("empty", "no_layer", "init_lacks", "call_lacks", "no_kwargs", "not_registered"),
    *("no_config", "config_base", "config_lacks", "config_value"),
    *("unseen", "in_call", "mask_lost"),  # these differ in no inputs
}
_LONGEST = 300  # of an error's text
_NEARLY_ALL = 1 - 1e-9  # a rate of dropout at which no number is kept, whatever the seed


class _Trial(NamedTuple):
    """An answer, with the arguments of a case."""

    exercise: LayerExercise
    answer: Any
    config: dict[str, Any]
    inputs: dict[str, np.ndarray]
    seed: int

    def pair(self, **changes: Any) -> tuple[Any, Any]:
        """The package's layer and the answer, both built and with the same random weights."""
        config = {**self.config, **changes}
        layers = self.exercise.make(**config), self.answer(**config)
        for layer in layers:
            layer(**self.inputs)
        rng = np.random.default_rng(self.seed)
        for wanted, weight in zip(*(layer.weights for layer in layers), strict=True):
            value = rng.normal(size=wanted.shape).astype("float32")
            wanted.assign(value)
            weight.assign(value.reshape(weight.shape))
        return layers

    def visible(self, output: Any) -> np.ndarray:
        """An output in NumPy, with 0 for tokens that are hidden themselves: those may be any."""
        array = _numpy(output)
        mask = self.inputs.get("mask", self.inputs.get("inputs_mask"))
        return array if mask is None else np.where(mask[..., None], array, 0)


def fault(
    exercise: LayerExercise, answer: Any, language: str, seed: int | None = None
) -> str | None:
    """The first difference between an answer and the package's layer; None without one."""
    seed = secrets.randbelow(10**6) if seed is None else seed
    number, what = first_fault(exercise, answer, seed)
    if what is None:
        return None
    is_of_inputs = what.key not in _OF_THE_CLASS
    case = (_described(*exercise.cases(seed)[number]), seed, number) if is_of_inputs else None
    return what.sentence(exercise.name, language, case)


def first_fault(exercise: LayerExercise, answer: Any, seed: int) -> tuple[int, Fault | None]:
    """The number of the case that fails first, and its fault; None if all are right."""
    cases = exercise.cases(seed)
    if what := _of_class(exercise, answer, cases[0][0]):
        return 0, what
    steps = [_of_weights, _of_output]
    with _quiet():
        for number, (config, inputs) in enumerate(cases):
            if number == len(cases) - 1:
                steps += [_of_config, _of_dropout, _of_model]
            trial = _Trial(exercise, answer, config, inputs, seed + number)
            try:
                faults = (what for step in steps if (what := step(trial)))
                what = next(faults, None)
            except (Exception, SystemExit) as error:  # whatever an answer raises is shown
                what = _error(trial, error)
            if what:
                return number, what
    return 0, None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without warnings; errors are those that were raised, not Keras's text around them."""
    import keras

    is_filtered, level = keras.config.is_traceback_filtering_enabled(), logging.root.manager.disable
    keras.config.disable_traceback_filtering()
    logging.disable(logging.WARNING)  # TensorFlow's, of functions that are traced anew
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
        if is_filtered:
            keras.config.enable_traceback_filtering()


def _described(config: dict[str, Any], inputs: dict[str, np.ndarray]) -> str:
    words = [f"{name}={_named(value)}" for name, value in config.items()]
    return ", ".join(words + [f"{name} {array.shape}" for name, array in inputs.items()])


def _named(value: Any) -> str:
    """A number or a name as it is, a function or an object by its name."""
    if isinstance(value, int | float | str):
        return str(value)
    return getattr(value, "__name__", type(value).__name__)


def _error(trial: _Trial, error: BaseException) -> Fault:
    if isinstance(error, NotImplementedError) and not error.args:
        return Fault("empty", {})
    if "cannot add new elements of state" in str(error):
        return Fault("in_call", {})
    what = raised(trial.answer.call, error)
    text = re.sub(r"\x1b\[\d*m", "", what.facts["error"])
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST].rsplit(' ', 1)[0]} …"
    return Fault(what.key, {**what.facts, "error": text})


# Before a call.


def _of_class(exercise: LayerExercise, answer: Any, config: dict[str, Any]) -> Fault | None:
    import keras

    if not (inspect.isclass(answer) and issubclass(answer, keras.layers.Layer)):
        return Fault("no_layer", {})
    layer: Any = answer
    init = inspect.signature(layer.__init__).parameters
    call = inspect.signature(layer.call).parameters
    for key, wanted, arguments in (
        ("init_lacks", config, init),
        ("call_lacks", exercise.arguments, call),
    ):
        for argument in wanted:
            if argument not in arguments:
                return Fault(key, {"argument": argument})
    if not any(each.kind is inspect.Parameter.VAR_KEYWORD for each in init.values()):
        return Fault("no_kwargs", {})
    if (layer.get_config.__module__ or "").startswith("keras."):
        return Fault("no_config", {})
    name = keras.saving.get_registered_name(answer)
    if keras.saving.get_registered_object(name) is not answer:
        return Fault("not_registered", {})
    return None


# The weights, before they are set.


def _of_weights(trial: _Trial) -> Fault | None:
    references = [trial.exercise.make(**trial.config) for _ in range(2)]
    for made in references:
        made(**trial.inputs)
    layer = trial.answer(**trial.config, name="mine")
    if layer.name != "mine":
        return Fault("no_kwargs", {})
    outputs = [layer(**trial.inputs) for _ in range(2)]
    if outputs[0] is None:
        return Fault("none", {})
    if isinstance(outputs[0], tuple | list | dict):
        return Fault("number", {"wanted": 1, "given": len(outputs[0])})
    shapes, wanted = (
        [tuple(weight.shape) for weight in each.weights] for each in (layer, references[0])
    )
    lacks = len(shapes) < len(wanted)
    if lacks and (what := _unseen(layer)):
        return what
    if _far(_numpy(outputs[0]), _numpy(outputs[1])):
        return Fault("in_call" if lacks else "not_repeated", {})
    if len(shapes) != len(wanted):
        facts = {"given": len(shapes), "shapes": shapes}
        return Fault("weights", {**facts, "wanted": len(wanted), "wanted_shapes": wanted})
    weights = zip(layer.weights, *(each.weights for each in references), strict=True)
    for number, (mine, one, other) in enumerate(weights, 1):
        if what := _of_weight(mine, one, other):
            return Fault(what.key, {**what.facts, "number": number, "count": len(wanted)})
    return None


def _of_weight(mine: Any, one: Any, other: Any) -> Fault | None:
    """Compares a new weight with those of two layers of the package, equal if not random."""
    shapes = {"given": tuple(mine.shape), "wanted": tuple(one.shape)}
    if not _reshapes(*shapes.values()):
        return Fault("weight_shape", shapes)
    if not mine.trainable:
        return Fault("frozen", {})
    value, wanted, again = (_numpy(each).ravel() for each in (mine, one, other))
    index = _far(wanted, value)
    if index and np.array_equal(wanted, again):
        return Fault("begins", _numbers(wanted, value, index))
    return None


def _unseen(layer: Any) -> Fault | None:
    """An attribute that is a tensor, an array or another library's variable."""
    import keras

    for attribute, value in vars(layer).items():
        is_private = attribute.startswith("_")  # Keras has arrays there
        for each in keras.tree.flatten(value):
            is_variable = type(each).__module__.startswith("tensorflow") and hasattr(each, "assign")
            is_array = isinstance(each, np.ndarray) or keras.ops.is_tensor(each)
            is_unseen = is_variable or is_array and not is_private
            if is_unseen and not isinstance(each, keras.Variable):
                kind = "tf.Variable" if is_variable else type(each).__name__
                return Fault("unseen", {"attribute": attribute, "given": kind})
    return None


def _reshapes(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether one shape splits axes of the other, as (D, H, P) splits (D, H · P)."""
    one, two = ({int(size) for size in np.cumprod(each)} - {1} for each in (shape, other))
    return bool(np.prod(shape) == np.prod(other) and (one <= two or two <= one))


# Outputs.


def _of_output(trial: _Trial) -> Fault | None:
    reference, layer = trial.pair()
    output, wanted = layer(**trial.inputs), trial.visible(reference(**trial.inputs))
    shape = tuple(getattr(output, "shape", ()))
    if shape != wanted.shape:
        return Fault("shape", {"which": None, "wanted": wanted.shape, "given": shape})
    array = trial.visible(output)
    index = _far(wanted, array)
    if index is None:
        return None
    weights = [_numpy(weight).astype("float64") for weight in reference.weights]
    for mistake in trial.exercise.mistakes:
        setting = Setting(weights, trial.config, mistake)
        with contextlib.suppress(ValueError):  # widths that the mistake cannot take
            guess = trial.visible(trial.exercise.oracle(setting, **trial.inputs))
            shows = guess.shape == array.shape and _far(wanted, guess) is not None  # in this case
            if shows and _far(guess, array, 1e-3, 1e-4) is None:
                return Fault(mistake, {})
    return Fault("value", {"index": index, **_numbers(wanted, array, index)})


def _numpy(tensor: Any) -> np.ndarray:
    import keras

    return np.asarray(keras.ops.convert_to_numpy(tensor))


def _far(
    wanted: np.ndarray, array: np.ndarray, rtol: float = 1e-4, atol: float = 1e-5
) -> tuple[int, ...] | None:
    """The first index at which two arrays differ, beyond the rounding of float32."""
    near = np.isclose(array, wanted, rtol=rtol, atol=atol)
    return None if near.all() else tuple(int(place) for place in np.argwhere(~near)[0])


def _numbers(wanted: np.ndarray, array: np.ndarray, index: tuple[int, ...]) -> dict[str, Any]:
    numbers = short(wanted[index], array[index])
    return {"which": None, "wanted": numbers[0], "given": numbers[1]}


def _of_dropout(trial: _Trial) -> Fault | None:
    if "dropout" not in trial.config:
        return None
    reference, layer = trial.pair(dropout=_NEARLY_ALL)
    kept = trial.visible(reference(**trial.inputs))
    for options in ({}, {"training": False}):
        if _far(kept, trial.visible(layer(**trial.inputs, **options))):
            return Fault("dropout_always", {})
    wanted, output = (
        trial.visible(each(**trial.inputs, training=True)) for each in (reference, layer)
    )
    index = _far(wanted, output)
    if index is None:
        return None
    if not _far(kept, output):
        return Fault("dropout_never", {})
    return Fault("dropout_place", {"index": index, **_numbers(wanted, output, index)})


# Files and training.


def _of_config(trial: _Trial) -> Fault | None:
    config = trial.answer(**trial.config).get_config()
    if "name" not in config:
        return Fault("config_base", {})
    for argument, wanted in trial.config.items():
        if argument not in config:
            return Fault("config_lacks", {"argument": argument})
        if isinstance(wanted, int | float | str) and config[argument] != wanted:
            facts = {"given": repr(config[argument]), "wanted": repr(wanted)}
            return Fault("config_value", {"argument": argument, **facts})
    return None


def _of_model(trial: _Trial) -> Fault | None:
    """Compares models in which Keras passes the masks: outputs, a loaded file, a training step."""
    rng = np.random.default_rng(trial.seed)
    inputs = {name: x.copy() for name, x in trial.inputs.items() if not name.endswith("mask")}
    masks: dict[int, np.ndarray] = {}  # by the number of tokens: key and value have the same
    for x in inputs.values():
        mask = masks.setdefault(x.shape[1], rng.random(x.shape[:2]) < 0.6)
        mask[:, 0], mask[0, -1] = True, False
        x[~mask] = 0
    layers, arrays = trial.pair(), list(inputs.values())
    models = [_model(layer, inputs, trial.seed) for layer in layers]
    wanted, output = (_numpy(model(arrays)) for model in models)
    if index := _far(wanted, output):
        key = "in_model" if layers[1].supports_masking else "mask_lost"
        return Fault(key, _numbers(wanted, output, index))
    return _of_file(trial, models[1], arrays) or _of_step(layers, models, arrays)


def _model(layer: Any, inputs: dict[str, np.ndarray], seed: int) -> Any:
    """Tokens (0 is hidden), a linear map of each, the layer, and a mean over visible tokens."""
    import keras

    tokens, mapped = [], {}
    rng = np.random.default_rng(seed)
    for name, array in inputs.items():
        width = array.shape[-1]
        tokens.append(keras.Input((None, width), name=name))
        linear = keras.layers.Dense(width, use_bias=False, name=f"to_{name}")
        mapped[name] = linear(keras.layers.Masking()(tokens[-1]))
        linear.kernel.assign(np.eye(width) + rng.normal(size=(width, width)) / 10)
    return keras.Model(tokens, keras.layers.GlobalAveragePooling1D()(layer(**mapped)))


def _of_file(trial: _Trial, model: Any, arrays: list[np.ndarray]) -> Fault | None:
    import keras

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        try:
            model.save(path)
            loaded = keras.saving.load_model(path)
        except Exception as error:  # of a config, or of weights
            return Fault("saving", {"error": _error(trial, error).facts.get("error", "")})
    if _far(_numpy(model(arrays)), _numpy(loaded(arrays))):
        return Fault("reloaded", {})
    return None


def _of_step(layers: tuple[Any, Any], models: list[Any], arrays: list[np.ndarray]) -> Fault | None:
    """Compares the changes of all weights by a step of gradient descent at a rate of 1."""
    import keras

    maps = [layer.name for layer in models[0].layers if layer.name.startswith("to_")]
    changes = []
    for layer, model in zip(layers, models, strict=True):
        weights = [model.get_layer(name).kernel for name in maps] + layer.weights
        before = [_numpy(weight).copy() for weight in weights]
        is_reference = layer is layers[0]
        model.compile(
            keras.optimizers.SGD(1.0), loss="mse", run_eagerly=is_reference, jit_compile=False
        )
        target = np.random.default_rng(0).normal(size=model(arrays).shape).astype("float32")
        model.fit(arrays, target, batch_size=len(target), verbose=0)
        changes.append([old - _numpy(w) for old, w in zip(before, weights, strict=True)])
    scale = max(1.0, *(float(np.abs(change).max()) for change in changes[0]))
    for number, (wanted, change) in enumerate(zip(*changes, strict=True), 1 - len(maps)):
        change = change.reshape(wanted.shape)
        index = _far(wanted, change, atol=1e-5 * scale)
        if index is None and not change.any() and np.abs(wanted).max() > 1e-6:
            index = tuple(map(int, np.unravel_index(np.abs(wanted).argmax(), wanted.shape)))
        if index is None:
            continue
        if number < 1:
            return Fault("gradient_of_input", {"argument": maps[number - 1].removeprefix("to_")})
        facts = {"number": number, "count": len(layers[0].weights), "index": index}
        key = "gradient" if change.any() else "untrained"
        return Fault(key, {**facts, **_numbers(wanted, change, index)})
    return None
