"""What a training step of a Transformer costs on paper, over how many devices."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from tfattn import _checks

__all__ = ["StepCost", "step_cost"]


class StepCost(NamedTuple):
    """What one training step costs, as leading terms. Memory and traffic are bytes of a device.

    Attributes:
        parameters: weights of the model.
        flops: of all devices together; a multiplication and an addition count as two.
        device_flops: of each device.
        weights: memory for the weights of a device.
        gradients: memory for their gradients.
        optimizer: memory for the averages that the optimizer keeps of them.
        activations: memory for what the backward pass needs of the forward pass.
        gradient_traffic: what a device sends so that gradients are summed over the batch.
        activation_traffic: what it sends so that the parts of split maps are summed.
    """

    parameters: int
    flops: int
    device_flops: int
    weights: int
    gradients: int
    optimizer: int
    activations: int
    gradient_traffic: int
    activation_traffic: int

    @property
    def memory(self) -> int:
        """Bytes on a device, all together."""
        return self.weights + self.gradients + self.optimizer + self.activations

    @property
    def traffic(self) -> int:
        """Bytes that a device sends, all together."""
        return self.gradient_traffic + self.activation_traffic


def step_cost(
    config: Mapping[str, Any],
    batch_size: int,
    source_length: int,
    target_length: int,
    data_parallel: int = 1,
    model_parallel: int = 1,
    averages: int = 2,
    number_bytes: int = 4,
) -> StepCost:
    """The cost of a training step of a `Transformer`, on data_parallel · model_parallel devices.

    Over `data_parallel` devices the rows of a batch are split; over `model_parallel` the weights
    are, as by `transformer_layout`. With B rows of S and T tokens, n = B · S, t = B · T, N layers
    of width D, H heads, F inner units, V words, d and m devices:

        weights of attention    4 D² + 3 D split, D whole
        of a network            2 D F + F split, D whole
        of a norm               2 D whole
        of vocabularies         V D each; of an output of its own D V + V

        forward, multiplications
            encoder layer       4 n D² + 2 n S D + 2 n D F
            decoder layer       6 t D² + 2 n D² + 2 t (T + S) D + 2 t D F
            output              t D V

        step = 3 · forward: the backward pass is two products for each one
        all-reduce of x bytes among k devices: 2 x (k − 1) / k sent by each

    A causal mask, padding and what blocks or a fused kernel spare are not taken off. Norms, biases,
    the softmax, dropout and the optimizer's update are left out of the operations. Of the
    activations, the inputs of all products and norms and the attention's weights are counted.

    Args:
        config: sizes of the model, as `Transformer.get_config` names them:
            `source_vocabulary_size`, `target_vocabulary_size`, `num_layers`, `width`, `num_heads`,
            `hidden_dim`, `share_embeddings`. `block` must be None; other entries are ignored.
        batch_size: positive int B, rows of a step on all devices together.
        source_length: positive int S.   target_length: positive int T.
        data_parallel: positive int d, which divides `batch_size`.
        model_parallel: positive int m, which divides heads, inner units and vocabularies.
        averages: int, what the optimizer keeps for each weight: 0 for SGD, 1 with momentum, 2 for
            Adam, and one more with `use_ema=True`. Defaults to 2.
        number_bytes: positive int, bytes of a number: 4 in float32. Defaults to 4.
    Returns:
        A `StepCost`, a named tuple of ints, with the sums `memory` and `traffic`.
    Raises:
        ValueError: a size is not a positive int, or missing, or does not divide.
    Example:
        >>> big = {"source_vocabulary_size": 37_000, "target_vocabulary_size": 37_000}
        >>> big |= {"num_layers": 6, "width": 1024, "num_heads": 16, "hidden_dim": 4096}
        >>> big |= {"share_embeddings": True}
        >>> cost = step_cost(big, batch_size=1000, source_length=25, target_length=25)
        >>> cost.parameters
        214245376
        >>> split = step_cost(big, 1000, 25, 25, data_parallel=2, model_parallel=4)
        >>> cost.memory // 10**9, split.memory // 10**9, split.traffic // 10**6
        (26, 6, 5513)

    Source: Kaplan et al. 2020, arXiv:2001.08361, section 2.1; Shoeybi et al. 2019,
    arXiv:1909.08053, section 3; all-reduce in rings, Patarasuk and Yuan 2009.
    """
    who, sizes = "step_cost", _Sizes.of(config)
    for name, value in {
        "batch_size": batch_size,
        "source_length": source_length,
        "target_length": target_length,
        "data_parallel": data_parallel,
        "model_parallel": model_parallel,
        "number_bytes": number_bytes,
    }.items():
        _checks.positive_int(who, name, value)
    _checks.non_negative_int(who, "averages", averages)
    _checks.divides(who, "data_parallel", data_parallel, "batch_size", batch_size)
    for name in ("heads", "inner", "source_words", "target_words"):
        _checks.divides(who, "model_parallel", model_parallel, name, getattr(sizes, name))

    split, whole = sizes.weights()
    device_weights = (split // model_parallel + whole) * number_bytes
    lengths = batch_size, source_length, target_length
    flops = 3 * 2 * sizes.products(*lengths)  # both ways; a product and its sum are two
    of_split_maps, of_tokens = sizes.kept(*lengths)
    kept = (of_split_maps // model_parallel + of_tokens) * number_bytes // data_parallel
    summed = sizes.summed(*lengths) * number_bytes // data_parallel
    return StepCost(
        parameters=split + whole,
        flops=flops,
        device_flops=flops // (data_parallel * model_parallel),
        weights=device_weights,
        gradients=device_weights,
        optimizer=averages * device_weights,
        activations=kept,
        gradient_traffic=_ring(device_weights, data_parallel),
        activation_traffic=_ring(summed, model_parallel),
    )


def _ring(size: int, devices: int) -> int:
    """Bytes that each of the devices sends to sum up arrays of that size."""
    return 2 * size * (devices - 1) // devices


class _Sizes(NamedTuple):
    """Sizes of a Transformer, and what is counted from them."""

    layers: int
    width: int
    heads: int
    inner: int
    source_words: int
    target_words: int
    is_shared: bool

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "_Sizes":
        if not isinstance(config, Mapping):
            expected = "be a mapping, as `Transformer.get_config` returns it"
            _checks.fail("step_cost", "config", expected, config)
        if config.get("block") is not None:
            _checks.fail("step_cost", "config", "have no `block` of its own", config["block"])
        names = ("num_layers", "width", "num_heads", "hidden_dim")
        names += ("source_vocabulary_size", "target_vocabulary_size")
        for name in names:
            if name not in config:
                _checks.fail("step_cost", "config", f"have an entry {name!r}", list(config))
        sizes = [_checks.positive_int("step_cost", name, config[name]) for name in names]
        return cls(*sizes, bool(config.get("share_embeddings", False)))

    def weights(self) -> tuple[int, int]:
        """Weights that are split over devices, and those that each has."""
        width, inner = self.width, self.inner
        attention, network = 4 * width**2 + 3 * width, 2 * width * inner + inner
        split = self.layers * (3 * attention + 2 * network)
        # The biases after the sums of three attentions and two networks; five norms.
        whole = self.layers * (5 * width + 5 * 2 * width)
        vocabularies = self.target_words * width
        if not self.is_shared:
            vocabularies += self.source_words * width + self.target_words * (width + 1)
        return split + vocabularies, whole

    def products(self, rows: int, source_length: int, target_length: int) -> int:
        """Multiplications forward."""
        n, t, width = rows * source_length, rows * target_length, self.width
        encoder = 4 * n * width**2 + 2 * n * source_length * width + 2 * n * width * self.inner
        decoder = 6 * t * width**2 + 2 * n * width**2 + 2 * t * width * self.inner
        decoder += 2 * t * (target_length + source_length) * width
        return self.layers * (encoder + decoder) + t * width * self.target_words

    def kept(self, rows: int, source_length: int, target_length: int) -> tuple[int, int]:
        """Numbers that the backward pass needs: of maps that are split, and of tokens."""
        n, t, width, inner = rows * source_length, rows * target_length, self.width, self.inner
        split = n * (4 * width + inner + self.heads * source_length) + 2 * n * width
        split += t * (6 * width + inner + self.heads * (target_length + source_length))
        whole = self.layers * (4 * n * width + 6 * t * width)
        return self.layers * split + t * self.target_words, whole

    def summed(self, rows: int, source_length: int, target_length: int) -> int:
        """Numbers that are summed over the devices of split maps.

        After attention and network forward, before them backward; each decoder layer has a gradient
        of the memory too. After the lookups of words, before the output, and in the softmax.
        """
        n, t, width = rows * source_length, rows * target_length, self.width
        layers = self.layers * (4 * n + 6 * t + n) * width
        return layers + (n + t) * width + t * (width + 3)
