"""The importance of tokens and heads in a model, a test of it, and a test of models for leaks.

Weights of a model come from `tfattn.attention_weights`.
"""

from tfattn.interpret.deletion import DeletionTest, deletion_test
from tfattn.interpret.heads import head_importance, without_heads
from tfattn.interpret.leaks import Leak, assert_no_leaks, find_leaks
from tfattn.interpret.weights import attention_rollout, head_entropy

__all__ = [
    "DeletionTest",
    "Leak",
    "assert_no_leaks",
    "attention_rollout",
    "deletion_test",
    "find_leaks",
    "head_entropy",
    "head_importance",
    "without_heads",
]
