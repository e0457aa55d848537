"""Score layers: how well a query matches a key. Any attention layer takes a score layer.

A score has two parts. `prepare` runs once per token and holds the weights. `pairwise` is a pure
function that runs once per pair, on all pairs at once or block by block. A new score is a subclass
of `Score`.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from tfattn import _checks
from tfattn._types import Shape, Tensor
from tfattn.core import kernels, scores
from tfattn.core.tensors import check_batch, matmul_by_head, matmul_shared
from tfattn.layers.base import CheckedCall, spec_of_call
from tfattn.layers.configs import build_part


class Score(CheckedCall, keras.layers.Layer):
    """Base of all scores. Called on a query and a key it returns the scores before softmax.

    A subclass defines `prepare_query` and `prepare_key`, and sets `pairwise` to a function of
    `tfattn.core.scores` or to its own. `parameters` returns the tensors that this function needs
    besides the operands; a tensor that the function closes over gets no gradient on the streamed
    path. If preparing an operand needs the other operand, a subclass may define `prepare` instead,
    which `RecurrentDecoder` refuses: it prepares the keys once, and a query at each step.

    Attributes:
        pairwise: function from the two operands, and `parameters`, to the scores.
        same_width: whether query and key must have the same width; `build` checks it.
    Call arguments:
        query: float `(B, T, Dq)`, or `(B, H, T, Dq)` with heads.
        key: float `(B, S, Dk)`, or `(B, G, S, Dk)` with G key heads, G a divisor of H.
    Returns:
        Scores, `(B, T, S)` or `(B, H, T, S)`.
    Example: a new score, which any attention layer takes.
        >>> class Negated(Score):
        ...     def prepare_query(self, query):
        ...         return -query
        >>> tokens = np.array([[[1.0], [2.0]]], "float32")
        >>> print(np.asarray(Negated()(query=tokens, key=tokens)[0]))
        [[-1. -2.]
         [-2. -4.]]
        >>> tuple(Attention(Negated())(query=tokens, value=tokens).shape)
        (1, 2, 1)
    """

    pairwise: Callable[..., Tensor] = staticmethod(scores.dot_product)
    same_width: bool = False

    def build(self, query_shape: Shape, key_shape: Shape) -> None:
        """Creates any weights, for operands of these shapes."""
        for name, shape in (("query", query_shape), ("key", key_shape)):
            _checks.known_width(type(self).__name__, name, shape)
        if self.same_width and query_shape[-1] != key_shape[-1]:
            others = "(AdditiveScore and BilinearScore take other widths)"
            expected = f"be as wide as `query`, {query_shape[-1]} {others}"
            _checks.fail(type(self).__name__, "key width", expected, key_shape[-1])

    def _check_call(self, arguments: dict[str, Any]) -> None:
        super()._check_call(arguments)
        who, query, key = type(self).__name__, arguments.get("query"), arguments.get("key")
        if query is not None and key is not None:
            _checks.rank(who, "query", query.shape, (3, 4), "(B, T, D) or (B, H, T, D)")
            letters = "(B, S, D)" if len(query.shape) == 3 else "(B, G, S, D)"
            _checks.rank(who, "key", key.shape, (len(query.shape),), letters)
            check_batch(who, "key", key.shape, "query", query.shape)
            for name, operand in (("query", query), ("key", key)):
                _checks.has_width(who, name, operand.shape)

    def prepare(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Turns query and key, token by token, into the operands of `pairwise`."""
        return self.prepare_query(query), self.prepare_key(key)

    def prepare_query(self, query: Tensor) -> Tensor:
        """The query's half of `prepare`."""
        return query

    def prepare_key(self, key: Tensor) -> Tensor:
        """The key's half of `prepare`."""
        return key

    def parameters(self) -> tuple[Tensor, ...]:
        """The tensors that `pairwise` takes after its operands."""
        return ()

    def call(self, query: Tensor, key: Tensor) -> Tensor:
        return self.pairwise(*self.prepare(query, key), *self.parameters())

    def compute_output_shape(self, query_shape: Shape, key_shape: Shape) -> Shape:
        return (*query_shape[:-1], key_shape[-2])

    # Not derived from shapes: some scores are wider than the policy's compute dtype.
    compute_output_spec = spec_of_call


@keras.saving.register_keras_serializable("tfattn")
class DotProductScore(Score):
    """The dot product of query and key, scaled.

        score = scale · (query · key)

    Args:
        scale: positive number; 1.0 is the unscaled product. Defaults to 1/√D.
    Call arguments, Returns: see `Score`; query and key are of one width D.
    Example:
        >>> query, key = np.ones((1, 2, 4), "float32"), np.ones((1, 3, 4), "float32")
        >>> print(np.asarray(DotProductScore()(query=query, key=key)[0, 0]))
        [2. 2. 2.]

    Source: Vaswani et al. 2017, arXiv:1706.03762, equation 1; unscaled, Luong, Pham,
    Manning 2015, arXiv:1508.04025, section 3.1, dot.
    """

    same_width = True

    def __init__(self, scale: float | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        if scale is not None:
            scale = _checks.positive_number("DotProductScore", "scale", scale)
        self.scale = scale

    def prepare_query(self, query: Tensor) -> Tensor:
        # Scaling the query costs T · D; scaling the scores would cost T · S, and overflows sooner
        # in half precision.
        return query * (query.shape[-1] ** -0.5 if self.scale is None else self.scale)


@keras.saving.register_keras_serializable("tfattn")
class NormalizedDotProductScore(Score):
    """The dot product of query and key after a norm of each, with learned gains ("QK-norm").

        score = scale · (gain_q · query / rms(query)) · (gain_k · key / rms(key))

    Scores stay bounded when the norms of queries and keys grow in training. All heads share the two
    gains. The norms are computed once per token, so this score streams like a dot product.

    Args:
        scale: positive number. Defaults to 1/√D.
        epsilon: positive number, added to the mean square.
    Call arguments, Returns: see `Score`; query and key are of one width D.
    Example:
        >>> query, key = np.ones((1, 2, 4), "float32"), np.ones((1, 3, 4), "float32")
        >>> print(np.asarray(NormalizedDotProductScore()(5 * query, 7 * key)[0, 0]).round(3))
        [2. 2. 2.]

    Source: Henry et al. 2020, arXiv:2010.04245; Dehghani et al. 2023, arXiv:2302.05442, section
    2.1. Differs from the first, which divides by the L2 norm and learns one scale (`CosineScore`
    with `trainable_temperature`), and from the second, which takes a layer norm.
    """

    same_width = True

    def __init__(self, scale: float | None = None, epsilon: float = 1e-6, **kwargs: Any):
        super().__init__(**kwargs)
        who = type(self).__name__
        self.scale = None if scale is None else _checks.positive_number(who, "scale", scale)
        self.epsilon = _checks.positive_number(who, "epsilon", epsilon)

    def build(self, query_shape: Shape, key_shape: Shape) -> None:
        super().build(query_shape, key_shape)
        options = {"shape": query_shape[-1:], "initializer": "ones", "autocast": False}
        self.query_gain = self.add_weight(name="query_gain", **options)
        self.key_gain = self.add_weight(name="key_gain", **options)

    def prepare_query(self, query: Tensor) -> Tensor:
        scale = self.scale or self.query_gain.shape[0] ** -0.5
        return self._normalized(query, self.query_gain) * scale

    def prepare_key(self, key: Tensor) -> Tensor:
        return self._normalized(key, self.key_gain)

    def _normalized(self, tokens: Tensor, gain: keras.Variable) -> Tensor:
        return ops.rms_normalization(tokens, scale=gain, axis=-1, epsilon=self.epsilon)


@keras.saving.register_keras_serializable("tfattn")
class SoftCapScore(Score):
    """Another score, kept between −cap and cap by a tanh.

        score = cap · tanh(score / cap)

    The cap is applied before mask and bias. Small scores hardly change.

    Args:
        cap: positive number.
        score: a score layer without a `prepare` of its own. Defaults to `DotProductScore()`.
    Call arguments, Returns: see `Score`.
    Example:
        >>> query, key = np.full((1, 1, 1), 10.0, "float32"), np.array([[[0.1], [9.0]]], "float32")
        >>> print(np.asarray(SoftCapScore(cap=5.0)(query, key)).round(2))
        [[[0.99 5.  ]]]

    Source: Gemma Team 2024, arXiv:2408.00118, section 2; Bello et al. 2016, arXiv:1611.09940,
    appendix A.1.
    """

    def __init__(self, cap: float, score: Score | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.cap = _checks.positive_number("SoftCapScore", "cap", cap)
        if score is None:
            score = DotProductScore(dtype=self.dtype_policy, name="score")
        self.score = split_score("SoftCapScore", score)
        self.pairwise = scores.soft_capped(score.pairwise, self.cap)

    def build(self, query_shape: Shape, key_shape: Shape) -> None:
        build_part(self, self.score, query_shape, key_shape)

    def prepare_query(self, query: Tensor) -> Tensor:
        return self.score.prepare_query(query)

    def prepare_key(self, key: Tensor) -> Tensor:
        return self.score.prepare_key(key)

    def parameters(self) -> tuple[Tensor, ...]:
        return self.score.parameters()


@keras.saving.register_keras_serializable("tfattn")
class AdditiveScore(Score):
    """A small network with one hidden layer, for queries and keys of any widths.

        score = w_v · tanh(W_q query + W_k key)

    Each head has its own weights.

    Args:
        units: positive int, width U of the hidden layer.
    Call arguments, Returns: see `Score`.
    Example:
        >>> query, key = np.ones((2, 1, 20), "float32"), np.ones((2, 10, 2), "float32")
        >>> tuple(AdditiveScore(units=8)(query=query, key=key).shape)
        (2, 1, 10)

    Source: Bahdanau, Cho, Bengio 2015, arXiv:1409.0473, appendix A.1.2. Differs from it in having
    no biases.
    """

    pairwise = staticmethod(scores.additive)

    def __init__(self, units: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.units = _checks.positive_int("AdditiveScore", "units", units)

    def build(self, query_shape: Shape, key_shape: Shape) -> None:
        super().build(query_shape, key_shape)
        self.query_kernel = _add_matrix(self, "query_kernel", query_shape, self.units)
        self.key_kernel = _add_matrix(self, "key_kernel", key_shape, self.units)
        self.score_kernel = _add_matrix(self, "score_kernel", (*query_shape[:-1], self.units), 1)

    def prepare_query(self, query: Tensor) -> Tensor:
        return _project(query, self.query_kernel)

    def prepare_key(self, key: Tensor) -> Tensor:
        return _project(key, self.key_kernel)

    def parameters(self) -> tuple[Tensor, ...]:
        # Keras casts weights automatically, except symbolic weights on PyTorch.
        return (ops.cast(self.score_kernel, self.compute_dtype),)


@keras.saving.register_keras_serializable("tfattn")
class BilinearScore(Score):
    """A learned matrix between query and key, which may differ in width (Luong's "general").

        score = query · W · key

    Each head has its own matrix.

    Call arguments, Returns: see `Score`.
    Example:
        >>> query, key = np.ones((2, 3, 5), "float32"), np.ones((2, 7, 4), "float32")
        >>> tuple(BilinearScore()(query=query, key=key).shape)
        (2, 3, 7)

    Source: Luong, Pham, Manning 2015, arXiv:1508.04025, section 3.1, general.
    """

    def build(self, query_shape: Shape, key_shape: Shape) -> None:
        super().build(query_shape, key_shape)
        self.kernel = _add_matrix(self, "kernel", query_shape, key_shape[-1])

    def prepare_query(self, query: Tensor) -> Tensor:
        return _project(query, self.kernel)


@keras.saving.register_keras_serializable("tfattn")
class CosineScore(Score):
    """The cosine of the angle between query and key, divided by a temperature.

        score = cos(query, key) / temperature

    Args:
        temperature: positive number; the smaller, the sharper the weights. A norm below 1e-6 counts
            as 1e-6, so that the cosine of a zero vector is 0.
        trainable_temperature: whether training changes the temperature, one per head. It begins at
            `temperature`, and stays positive, since its logarithm is the weight.
            `current_temperature()` returns its value.
    Call arguments, Returns: see `Score`; query and key are of one width.
    Example:
        >>> query = np.array([[[3.0, 0.0]]], "float32")
        >>> print(np.asarray(CosineScore(temperature=0.5)(query=query, key=-query)))
        [[[-2.]]]

    Source: Graves, Wayne, Danihelka 2014, arXiv:1410.5401, equations 5 and 6; the temperature is
    1/β. Learned, Henry et al. 2020, arXiv:2010.04245; one per head, Liu et al. 2022,
    arXiv:2111.09883.
    """

    same_width = True

    def __init__(
        self, temperature: float = 1.0, trainable_temperature: bool = False, **kwargs: Any
    ):
        super().__init__(**kwargs)
        self.temperature = _checks.positive_number("CosineScore", "temperature", temperature)
        self.trainable_temperature = _checks.boolean(
            "CosineScore", "trainable_temperature", trainable_temperature
        )

    def build(self, query_shape: Shape, key_shape: Shape) -> None:
        super().build(query_shape, key_shape)
        if self.trainable_temperature:
            self.log_temperature = self.add_weight(
                name="log_temperature",
                shape=query_shape[1:2] if len(query_shape) == 4 else (),
                initializer=keras.initializers.Constant(math.log(self.temperature)),
                autocast=False,
            )

    def current_temperature(self) -> Tensor:
        """The current temperature: a scalar, or `(H,)`."""
        if not self.trainable_temperature:
            return ops.convert_to_tensor(self.temperature, "float32")
        return ops.exp(self.log_temperature)

    def prepare_query(self, query: Tensor) -> Tensor:
        if not self.trainable_temperature:
            return _unit(query) / self.temperature
        temperature = self.current_temperature()
        if len(temperature.shape) == 1:
            temperature = temperature[:, None, None]  # (H, 1, 1)
        return _unit(query) / ops.cast(temperature, query.dtype)

    def prepare_key(self, key: Tensor) -> Tensor:
        return _unit(key)


@keras.saving.register_keras_serializable("tfattn")
class KernelScore(Score):
    """The logarithm of a smoothing kernel of the distance between query and key.

        score = log K(‖(query − key) / bandwidth‖)        so that softmax over keys gives K / Σ K

    The bandwidth is the softplus of the trained weight, and so stays positive.

    Args:
        kernel: a name of `tfattn.kernels.names()`, such as "gaussian", or a function from squared
            distances in bandwidths to log weights (registered with Keras, if the layer is to be
            saved).
        bandwidth: positive number, or a sequence of them, one per dimension of the keys; in the
            unit of the inputs.
        trainable_bandwidth: whether training changes the bandwidth. `current_bandwidth()` returns
            its value.
    Call arguments, Returns: see `Score`; query and key are of one width.
    Example:
        >>> query, key = np.array([[[0.0]]], "float32"), np.array([[[2.0], [4.0]]], "float32")
        >>> print(np.asarray(KernelScore("gaussian", bandwidth=2.0)(query=query, key=key)))
        [[[-0.5 -2. ]]]

    Source: Nadaraya 1964; Watson 1964; kernels, Wasserman, All of Nonparametric Statistics,
    4.2, which has no triangular kernel.
    """

    same_width = True

    def __init__(
        self,
        kernel: str | Callable[[Tensor], Tensor] = "gaussian",
        bandwidth: float | Sequence[float] = 1.0,
        trainable_bandwidth: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.kernel, self.bandwidth = checked_smoothing("KernelScore", kernel, bandwidth)
        self.trainable_bandwidth = _checks.boolean(
            "KernelScore", "trainable_bandwidth", trainable_bandwidth
        )
        self.pairwise = scores.log_kernel(kernels.get(kernel))

    def build(self, query_shape: Shape, key_shape: Shape) -> None:
        super().build(query_shape, key_shape)
        if isinstance(self.bandwidth, list) and len(self.bandwidth) != key_shape[-1]:
            expected = f"be one number, or one per dimension of the keys, {key_shape[-1]}"
            _checks.fail("KernelScore", "bandwidth", expected, self.bandwidth)
        initial = _inverse_softplus(self.bandwidth)
        # float32 or wider in every policy: a rounded bandwidth would change the estimate.
        self.raw_bandwidth = self.add_weight(
            name="raw_bandwidth",
            shape=ops.shape(initial),
            initializer=lambda shape, dtype: ops.cast(initial, dtype),
            trainable=self.trainable_bandwidth,
            autocast=False,
        )

    def current_bandwidth(self) -> Tensor:
        """The current bandwidth: a scalar, or `(D,)`."""
        # Far below 0 the softplus rounds to 0 in float32.
        return ops.maximum(ops.softplus(self.raw_bandwidth), 1e-12)

    def prepare_query(self, query: Tensor) -> Tensor:
        bandwidth = self.current_bandwidth()
        dtype = keras.backend.result_type(query.dtype, bandwidth.dtype)
        return ops.cast(query, dtype) / ops.cast(bandwidth, dtype)

    def prepare_key(self, key: Tensor) -> Tensor:
        return self.prepare_query(key)  # also divided by the bandwidth

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "kernel": kernels.serialize(self.kernel)}


def split_score(who: str, score: Any) -> Score:
    """A score that prepares query and key separately."""
    if not isinstance(score, Score) or type(score).prepare is not Score.prepare:
        expected = "be a score layer with `prepare_query` and `prepare_key`"
        _checks.fail(who, "score", expected, score)
    return score


def checked_smoothing(
    who: str, kernel: str | Callable[[Tensor], Tensor], bandwidth: Any
) -> tuple[str | Callable[[Tensor], Tensor], float | list[float]]:
    """The kernel, and its bandwidth as a positive number or a list of positive numbers."""
    kernels.get(kernel, who)
    if not isinstance(bandwidth, (list, tuple)) and not getattr(bandwidth, "shape", ()):
        return kernel, _checks.positive_number(who, "bandwidth", bandwidth)
    if len(bandwidth) == 0:
        _checks.fail(who, "bandwidth", "hold at least one number", bandwidth)
    return kernel, [_checks.positive_number(who, "bandwidth", h) for h in bandwidth]


def _inverse_softplus(bandwidth: float | Sequence[float]) -> Tensor:
    """The inverse of softplus, log(exp(h) − 1), in a form that does not overflow for a large h."""
    h = ops.convert_to_tensor(bandwidth, "float32")
    return h + ops.log(-ops.expm1(-h))


def _unit(tensor: Tensor) -> Tensor:
    """Each token divided by its norm, in float32 or wider; a zero vector stays 0."""
    wide = ops.cast(tensor, keras.backend.result_type(tensor.dtype, "float32"))
    squared = ops.sum(ops.square(wide), axis=-1, keepdims=True)
    return ops.cast(wide * ops.rsqrt(ops.maximum(squared, 1e-12)), tensor.dtype)


def _add_matrix(score: Score, name: str, shape: Sequence[Any], width: Any) -> keras.Variable:
    """A matrix `(D, width)`, or one per head, `(H, D, width)`, for tokens of this shape.

    The bound is Glorot's; Keras's initializer would take the heads as a receptive field, and its
    weights would be too small.
    """
    bound = (6.0 / (shape[-1] + width)) ** 0.5
    heads = shape[1:2] if len(shape) == 4 else ()
    return score.add_weight(
        name=name,
        shape=(*heads, shape[-1], width),
        initializer=keras.initializers.RandomUniform(-bound, bound),
    )


def _project(tensor: Tensor, matrix: Tensor) -> Tensor:
    """Tokens times a shared matrix, or each head's tokens times its own matrix."""
    is_shared = len(matrix.shape) == 2
    product = matmul_shared if is_shared else matmul_by_head
    return product(tensor, ops.cast(matrix, tensor.dtype))
