"""Multiplications of a Transformer's step, counted in what JAX traces. Prints (forward, step)."""

import json
import math
import os
import sys

# As a program; whoever collects tests imports it too.
if __name__ == "__main__":
    os.environ["KERAS_BACKEND"] = "jax"
    sys.modules["tensorflow"] = None  # nothing here needs it

import jax  # noqa: E402
import numpy as np  # noqa: E402

import tfattn  # noqa: E402


def count(jaxpr):
    """Multiplications of all products in a jaxpr and in those within."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (summed, _), _ = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            output = math.prod(equation.outvars[0].aval.shape)
            total += output * math.prod(left[axis] for axis in summed)
        for inner in jax.core.jaxprs_in_params(equation.params):
            total += count(inner)
    return total


def main(sizes, rows, source_length, target_length):
    model = tfattn.Transformer(dropout=0.0, **sizes)
    model.build(((None, None), (None, None)))
    source = np.ones((rows, source_length), "int32")
    target = np.ones((rows, target_length), "int32")
    others = [variable.value for variable in model.non_trainable_variables]
    loss = tfattn.MaskedCrossentropy()

    def forward(weights):
        logits, _ = model.stateless_call(weights, others, (source, target))
        return loss(target, logits)

    weights = [variable.value for variable in model.trainable_variables]
    return [
        count(jax.make_jaxpr(function)(weights).jaxpr)
        for function in (forward, jax.value_and_grad(forward))
    ]


if __name__ == "__main__":
    print(json.dumps(main(*json.loads(sys.argv[1]))))
