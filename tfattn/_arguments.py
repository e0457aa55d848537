"""The arguments of constructors."""

import contextlib
import functools
import inspect
import math
from collections.abc import Collection
from typing import Any

import keras
from keras import ops

from tfattn import _checks

_PASSED_ON = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def constructor_arguments(instance: object) -> list[str]:
    """The arguments of an object's constructor, and of those that get its other arguments, except
    Keras's. Raises for one that is no attribute, unless a `get_config` adds it.
    """
    names, added = [], False
    for base in type(instance).__mro__[:-1]:  # without `object`
        added = added or "get_config" in vars(base)
        if "__init__" not in vars(base):
            continue
        if base.__module__.partition(".")[0] == "keras":
            break
        parameters = list(inspect.signature(base.__init__).parameters.values())[1:]  # type: ignore[misc]
        own = [each.name for each in parameters if each.kind not in _PASSED_ON]
        for name in own:
            if not hasattr(instance, name) and not added:
                expected = "be kept as an attribute of its name, or `get_config` be overridden"
                _checks.fail(type(instance).__name__, name, expected, "no attribute")
        names += [name for name in own if hasattr(instance, name)]
        if len(own) == len(parameters):
            break
    return names


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


class Configurable:
    """An object whose constructor's arguments are attributes of the same names."""

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments, as JSON types."""
        return {name: _plain(getattr(self, name)) for name in constructor_arguments(self)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """The object restored from its config."""
        return cls(**{k: keras.saving.deserialize_keras_object(v) for k, v in config.items()})

    def __repr__(self) -> str:
        """The code that makes the object, with the arguments that differ from their defaults."""
        shown: list[str] = []
        parameters = inspect.signature(type(self)).parameters
        for place, (name, parameter) in enumerate(parameters.items()):
            value, default = getattr(self, name, parameter.default), parameter.default
            if parameter.kind in _PASSED_ON or value is default:
                continue
            if type(value) is not type(default) or value != default:
                shown.append(f"{name}={_shown(value)}" if place else _shown(value))
        name = keras.saving.get_registered_name(type(self)).rpartition(">")[2]
        return f"{name}({', '.join(shown)})"


def _plain(value: Any) -> Any:
    """Arrays of floats as Keras saves them, with their dtype; other arrays and tuples as lists."""
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if hasattr(value, "shape"):  # variables too
        array = ops.convert_to_numpy(value)
        value = array if "float" in array.dtype.name else array.tolist()
    return keras.saving.serialize_keras_object(value)


def _shown(value: Any) -> str:
    """Dtype and shape of an array with many numbers, or none yet."""
    if not hasattr(value, "shape"):
        return repr(value)
    if None not in value.shape and math.prod(value.shape) <= 12:
        with contextlib.suppress(Exception):  # of each backend its own, for a tensor of a graph
            return repr(ops.convert_to_numpy(value).tolist())
    return f"<{keras.backend.standardize_dtype(value.dtype)}, {tuple(value.shape)}>"
