"""One compiled loop for each step function, kept as long as the step's owner lives."""

import weakref

import keras

from tfattn import _checks

# By the id of the step's owner, since not every owner can be hashed; an entry goes when its owner
# does.
_compiled = {}


def compiled(search, step, settings):
    """`search` with that step and those settings as a compiled function of tensors.

    Args:
        search: function of (step, settings, *tensors).
        step: function or bound method; its compiled searches are dropped together with it.
        settings: hashable; another value is another compiled function.
    Returns:
        A function of the tensors. On TensorFlow it is traced once for each shape of them.
    """
    owner = getattr(step, "__self__", step)
    if id(owner) not in _compiled:
        weakref.finalize(owner, _compiled.pop, id(owner), None)
    per_step = _compiled.setdefault(id(owner), {})
    name = getattr(step, "__name__", None)
    if (search, name, settings) not in per_step:
        per_step[search, name, settings] = _compile(search, _weak(step), settings)
    return per_step[search, name, settings]


def _weak(step):
    # A strong reference from the value to its key would keep both in the table for ever.
    return weakref.WeakMethod(step) if hasattr(step, "__self__") else weakref.ref(step)


class _Run:
    """A search with its step, and a name for TensorFlow's messages.

    An object and no inner function: TensorFlow tells functions apart by their code when it counts
    how often one is traced anew, and would warn of many searches that are each traced once.
    """

    def __init__(self, search, step, settings):
        self.search, self.step, self.settings = search, step, settings
        self.__name__ = search.__name__

    def __call__(self, *tensors):
        return self.search(self.step(), self.settings, *tensors)


def _compile(search, step, settings):
    run = _Run(search, step, settings)
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        # Without AutoGraph: nothing here needs it, and where it fails it keeps the step's owner
        # alive.
        return tf.function(run, autograph=False, reduce_retracing=True)
    return _compile_on_jax(run) if backend == "jax" else run


def _compile_on_jax(run):
    """`run` for JAX, which would take the weights that it meets while it traces for constants: so
    they are arguments.
    """
    import jax

    @jax.jit
    def traced(weights, *tensors):
        with keras.StatelessScope(
            state_mapping=zip(run.step().__self__.variables, weights, strict=True)
        ):
            return run(*tensors)

    def call(*tensors):
        variables = getattr(getattr(run.step(), "__self__", None), "variables", None)
        if variables is None:  # whatever the step may read, nobody can tell
            return run(*tensors)
        if not getattr(
            run.step().__self__, "built", True
        ):  # its weights would be made within the trace, and stay there
            _checks.fail("decoding", "step", "belong to a model that is built", run.step())
        return traced([variable.value for variable in variables], *tensors)

    return call
