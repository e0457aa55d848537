"""What attention weights and heads do in a model, and a test of how far to believe it.

Weights of a model come from `tfattn.attention_weights`. What these functions name, a word or a
head, `deletion_test` takes away, and beside it as many at random.
"""

from tfattn.interpret.deletion import DeletionTest, deletion_test
from tfattn.interpret.heads import gradient_times_attention, head_importance, without_heads
from tfattn.interpret.weights import attention_rollout, head_entropy

__all__ = [
    "DeletionTest",
    "attention_rollout",
    "deletion_test",
    "gradient_times_attention",
    "head_entropy",
    "head_importance",
    "without_heads",
]
