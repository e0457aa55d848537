"""Names of arguments elsewhere, which are refused with the name here."""

import functools
import inspect
from collections.abc import Collection
from typing import Any

from tfattn import _checks

# Names of arguments here, and in Keras, KerasHub, PyTorch, its users' code, and books.
_NAMES = {
    "attention_dropout": "attn_dropout attention_dropout_rate attn_pdrop",
    "attention_mask": "attn_mask mask src_mask tgt_mask",
    "dropout": "dropout_rate dropout_prob rate p",
    "epsilon": "eps layer_norm_eps layer_norm_epsilon",
    "hidden_dim": "intermediate_dim intermediate_size dim_feedforward d_ff dff ff_dim ffn_dim "
    "mlp_dim ffn_num_hiddens",
    "key": "k keys",
    "key_mask": "key_padding_mask padding_mask",
    "max_length": "max_len maxlen max_seq_len sequence_length max_position_embeddings",
    "norm_first": "normalize_first pre_norm",
    "num_heads": "nhead n_head n_heads heads num_attention_heads num_query_heads",
    "num_key_value_heads": "num_kv_heads n_kv_heads kv_heads",
    "num_layers": "n_layers depth num_blks num_hidden_layers",
    "query": "q queries",
    "return_attention_scores": "need_weights return_weights return_attention output_attentions",
    "units": "num_hiddens hidden_size",
    "use_bias": "bias qkv_bias",
    "use_causal_mask": "is_causal causal",
    "valid_lens": "lengths valid_len sequence_lengths",
    "value": "v values",
    "vocabulary_size": "vocab_size num_embeddings",
    "width": "d_model embed_dim embedding_dim hidden_size model_dim num_hiddens",
}
_NOTES = {
    "key_padding_mask": ", with True where a token is real",
    "mask": ", or as `key_mask` if it is the padding of the keys",
}


def refuse_other_names(who: str, given: dict[str, Any], taken: Collection[str]) -> None:
    """Raises for an argument that is `taken` by another name."""
    for here, elsewhere in _NAMES.items():
        for name in elsewhere.split():
            if name in given and here in taken and name not in taken:
                expected = f"be passed as `{here}`{_NOTES.get(name, '')}"
                _checks.fail(who, name, expected, getattr(given[name], "shape", given[name]))


@functools.cache
def constructor_names(cls: type) -> frozenset[str]:
    """The names of a constructor's arguments, and of its base classes'."""
    constructors = [vars(base)["__init__"] for base in cls.__mro__[:-1] if "__init__" in vars(base)]
    return frozenset(name for each in constructors for name in inspect.signature(each).parameters)
