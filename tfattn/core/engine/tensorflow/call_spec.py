"""A call, split into its tensors and a spec without tensors.

The tensors of a mask or a dropout become arguments like the operands: functions traced once can be
called with other tensors, which get gradients in any graph. A custom mask that defines no `flatten`
keeps its tensors.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import tensorflow as tf

from tfattn.core import trees
from tfattn.core.biases import Bias
from tfattn.core.call import AttentionCall
from tfattn.core.engine.tensorflow.block_dropout import BlockDropout
from tfattn.core.engine.tensorflow.loops import Block
from tfattn.core.masks import Mask
from tfattn.core.scores import facts_of


class Call(NamedTuple):
    """A call restored from its tensors."""

    query: tf.Tensor
    key: tf.Tensor
    value: tf.Tensor
    bias: Bias | None
    bias_parameters: list[tf.Tensor]
    parameters: list[tf.Tensor]
    mask: Mask | None
    dropout: BlockDropout | None


class CallSpec(NamedTuple):
    """The fields of a call besides its tensors; hashable."""

    score: Callable[..., tf.Tensor]
    rank: int
    block: Block
    heads_together: bool  # whether heads must be computed together
    num_parameters: int
    bias: trees.Structure
    num_bias_parameters: int
    mask: trees.Structure
    rate: float | None  # of dropout, or None
    log_sum_exp: bool  # whether it is returned beside the output

    @classmethod
    def of(
        cls,
        call: AttentionCall,
        dropout: BlockDropout | None,
        rank: int,
        block: Block,
        heads_together: bool,
    ) -> tuple["CallSpec", list[tf.Tensor]]:
        """The spec, and the tensors: first the differentiable, then the other tensors. `rank` is
        that of the user's operands; the operands of `call` have heads.
        """
        bias_parameters = () if call.bias is None else call.bias.parameters()
        bias_arrays, bias = trees.flatten(call.bias)
        mask_arrays, mask = trees.flatten(call.mask)
        differentiable = [call.query, call.key, call.value, *bias_parameters, *call.parameters]
        tensors = [tf.convert_to_tensor(x) for x in (*differentiable, *bias_arrays, *mask_arrays)]
        if dropout is not None:
            tensors.append(dropout.key)
        spec = cls(
            score=call.score,
            rank=rank,
            block=block,
            heads_together=heads_together,
            num_parameters=len(call.parameters),
            bias=bias,
            num_bias_parameters=len(bias_parameters),
            mask=mask,
            rate=None if dropout is None else dropout.rate,
            log_sum_exp=call.return_log_sum_exp,
        )
        return spec, tensors

    @property
    def num_outputs(self) -> int:
        return 2 if self.log_sum_exp else 1

    @property
    def num_differentiable(self) -> int:
        return 3 + self.num_bias_parameters + self.num_parameters

    @property
    def is_shareable(self) -> bool:
        """Whether calls of this spec differ in their tensors alone; False with custom objects."""
        return facts_of(self.score).is_pure and all(map(trees.is_shareable, (self.mask, self.bias)))

    def call(self, tensors: Iterable[tf.Tensor]) -> Call:
        tensors = iter(tensors)
        query, key, value = (next(tensors) for _ in range(3))
        bias_parameters = [next(tensors) for _ in range(self.num_bias_parameters)]
        parameters = [next(tensors) for _ in range(self.num_parameters)]
        bias, mask = (trees.unflatten(x, tensors) for x in (self.bias, self.mask))
        dropout = None if self.rate is None else BlockDropout(self.rate, next(tensors))
        return Call(query, key, value, bias, bias_parameters, parameters, mask, dropout)
