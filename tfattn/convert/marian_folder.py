"""Folders of Marian's translators, as `transformers` publishes them."""

import functools
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path, PureWindowsPath
from typing import Any

import numpy as np

from tfattn import _checks, _optional
from tfattn.convert import weights
from tfattn.convert.marian import NEVER, SIZES, from_marian
from tfattn.data.marian import MarianVocabulary
from tfattn.decoding import GreedySearch, PooledBeamSearch, rules
from tfattn.models.transformer import Transformer

_WHO = "load_marian"
_GENERATION = "generation_config.json"
_MOST_BYTES = 2**27  # of a file other than the weights
_MOST_POSITIONS = 2**17
# The entries of `tokenizer_config.json` and their defaults.
_SPECIAL = {"unk_token": "<unk>", "pad_token": "<pad>", "eos_token": "</s>"}
# Settings by which `generate` changes the scores, and the values that change nothing.
_UNCHANGED: dict[str, tuple[Any, ...]] = {
    "repetition_penalty": (None, 1),
    "no_repeat_ngram_size": (None, 0),
    "min_length": (None, 0),
    "min_new_tokens": (None, 0),
    "suppress_tokens": (None, []),
    "begin_suppress_tokens": (None, []),
    "sequence_bias": (None,),
    "exponential_decay_length_penalty": (None,),
    "encoder_no_repeat_ngram_size": (None, 0),
    "encoder_repetition_penalty": (None, 1),
    "num_beam_groups": (None, 1),
    "diversity_penalty": (None, 0),
    "penalty_alpha": (None, 0),
}


def load_marian(
    folder: str | os.PathLike[str],
) -> tuple[Transformer, MarianVocabulary, MarianVocabulary]:
    """Loads a published translator, a folder of `MarianMTModel` and `MarianTokenizer`.

        model, *vocabularies = tfattn.convert.load_marian("opus-mt-en-fr")
        search = tfattn.convert.marian_search("opus-mt-en-fr")
        tfattn.translate(model, ["How are you?"], *vocabularies, search=search, max_length=511)

    Translations equal those of `MarianMTModel.generate` and `MarianTokenizer`, if `max_length` is
    one less than the folder's, which counts the begin token too. Any other search works as
    well. A sentence may begin with a code of its target language, such as ">>fra<<". Nothing else
    in a sentence is special: "</s>" is text.

    If `bad_words_ids` forbids Marian's padding, as published, the model never predicts it. The
    other tokens get its probability only with `renormalize_logits`; without it, `to_marian` refuses
    the model.

    Args:
        folder: path of a folder with `config.json`, `source.spm`, `target.spm`, `vocab.json`
            (`target_vocab.json` too, for two vocabularies), and `model.safetensors` or
            `pytorch_model.bin`, each whole or in shards with its `.index.json`, from which only
            weights are read. `generation_config.json` and `tokenizer_config.json` may be missing.
    Returns:
        The model, and the vocabularies of source and target. Ids are as in `from_marian`.
    Raises:
        FileNotFoundError: the folder or a file is missing.
        ValueError: a file is damaged, does not fit the others, or is larger than any translator's;
            a feature is not supported, by name.
        ImportError: safetensors or sentencepiece is not installed, or PyTorch for
            `pytorch_model.bin`.
    """
    folder, config, generation = _read(_WHO, folder)
    settings = _json(_WHO, folder, "tokenizer_config.json", {})
    _check_settings(config, generation, settings)
    vocabularies = _vocabularies(folder, config, settings)
    _check_ids(config, generation)
    state = _weights(folder)
    _check_sizes(config, state)
    model = from_marian(state, config)
    for variable in model.weights:
        if not np.isfinite(np.array(variable)).all():
            _checks.fail(_WHO, "weights", "be finite numbers", variable.path)
    if generation.get("bad_words_ids"):
        _forbid_padding(model, config["pad_token_id"] + 1, generation.get("renormalize_logits"))
    return model, *vocabularies


def marian_search(folder: str | os.PathLike[str]) -> GreedySearch | PooledBeamSearch:
    """The search of a published translator, by its `generation_config.json`.

    Args:
        folder: as in `load_marian`.
    Returns:
        `PooledBeamSearch` with its `num_beams`, `length_penalty` and `early_stopping`, or
        `GreedySearch` for a single beam; with `rules.TargetPrefix` for `forced_bos_token_id`.
    Raises:
        FileNotFoundError: the folder or `config.json` is missing.
        ValueError: a file is damaged; the search is another one, or an entry is out of its range.
    """
    who = "marian_search"
    _, _, generation = _read(who, folder)
    weights.refuse(who, "do_sample", bool(generation.get("do_sample")), "it is no beam search")
    _check_unchanged(who, generation)
    names = ("num_beams", "length_penalty", "early_stopping")
    given = {name: generation[name] for name in names if generation.get(name) is not None}
    first, forced = generation.get("forced_bos_token_id"), []
    if first is not None:
        first = _checks.non_negative_int(who, "forced_bos_token_id", first) + 1
        forced = [rules.TargetPrefix([first], scored=False)]
    if given.get("num_beams", 1) == 1:
        return GreedySearch(forced)
    return PooledBeamSearch(**given, rules=forced)


def published_languages(folder: str | os.PathLike[str]) -> tuple[str, str] | None:
    """The languages of source and target, if `tokenizer_config.json` names them."""
    settings = _json(_WHO, Path(folder), "tokenizer_config.json", {})
    source, target = settings.get("source_lang"), settings.get("target_lang")
    return (source, target) if isinstance(source, str) and isinstance(target, str) else None


def _read(who: str, folder: str | os.PathLike[str]) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """(Folder, configuration, settings of `generate`)."""
    folder = Path(_checks.path(who, "folder", folder))
    if not folder.is_dir():
        _checks.fail(who, "folder", "be a folder", str(folder), error=FileNotFoundError)
    config = _json(who, folder, "config.json")
    return folder, config, _json(who, folder, _GENERATION, config)


def _bytes(who: str, folder: Path, name: str) -> bytes:
    path = folder / name
    if not path.is_file():
        _checks.fail(who, name, "be in the folder", str(folder), error=FileNotFoundError)
    if path.stat().st_size > _MOST_BYTES:
        _checks.fail(who, name, f"have at most {_MOST_BYTES:,} bytes", path.stat().st_size)
    return path.read_bytes()


def _json(
    who: str, folder: Path, name: str, default: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    if default is not None and not (folder / name).exists():
        return dict(default)
    content = _bytes(who, folder, name)
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        _checks.fail(who, name, "contain a JSON object", str(folder / name))
    return found


def _check_settings(
    config: Mapping[str, Any], generation: Mapping[str, Any], settings: Mapping[str, Any]
) -> None:
    """Raises for files of other models, and for unsupported features."""
    if config.get("model_type") != "marian":
        _checks.fail(_WHO, "model_type", "be 'marian' in config.json", config.get("model_type"))
    names = ("vocab_size", "max_position_embeddings", "d_model", *SIZES)
    ids = ("pad_token_id", "eos_token_id", "decoder_start_token_id")
    _checks.mapping(_WHO, "config.json", config, (*names, *ids))
    for name in names:
        _checks.positive_int(_WHO, name, config[name])
    _checks.positive_int(_WHO, "decoder_vocab_size", config.get("decoder_vocab_size") or 1)
    for name in ids:
        _checks.non_negative_int(_WHO, name, config[name])
    padding = config["pad_token_id"]
    begin = config["decoder_start_token_id"]
    weights.refuse(_WHO, "decoder_start_token_id", begin != padding, "it must be `pad_token_id`")
    bad = generation.get("bad_words_ids")
    only = "only padding can be forbidden; use tfattn.rules.ForbiddenTokens for others"
    weights.refuse(_WHO, "bad_words_ids", bad not in (None, [], [[padding]]), only)
    _check_unchanged(_WHO, generation)
    # A published file lists the three special tokens as added.
    added = settings.get("added_tokens_decoder") or {}
    _checks.mapping(_WHO, "added_tokens_decoder", added)
    only = "only the end, unknown and padding tokens are supported"
    weights.refuse(_WHO, "added_tokens_decoder", len(added) > len(_SPECIAL), only)
    sampled = bool(settings.get("sp_model_kwargs"))
    weights.refuse(_WHO, "sp_model_kwargs", sampled, "sampling of subwords is not supported")


def _check_ids(config: Mapping[str, Any], generation: Mapping[str, Any]) -> None:
    """Raises if `generate` would use other special tokens than the vocabularies."""
    for name in ("pad_token_id", "eos_token_id", "decoder_start_token_id", "forced_eos_token_id"):
        wanted = config[name.removeprefix("forced_")]
        if generation.get(name) not in (None, wanted):
            expected = f"be {wanted} in {_GENERATION}, as in config.json"
            _checks.fail(_WHO, name, expected, generation[name])


def _check_unchanged(who: str, generation: Mapping[str, Any]) -> None:
    for name, neutral in _UNCHANGED.items():
        reason = "it is an option of decoding; see tfattn.rules"
        weights.refuse(who, name, generation.get(name) not in neutral, reason)


def _vocabularies(
    folder: Path, config: Mapping[str, Any], settings: Mapping[str, Any]
) -> tuple[MarianVocabulary, MarianVocabulary]:
    """Source and target; each has its own sentencepiece model."""
    size = config["vocab_size"]
    table = "target_vocab.json" if settings.get("separate_vocabs") else "vocab.json"
    source = _vocabulary(folder, "source.spm", "vocab.json", size, settings)
    size = config.get("decoder_vocab_size") or size
    target = _vocabulary(folder, "target.spm", table, size, settings)
    for name, index in (("pad_token_id", target.begin_id), ("eos_token_id", target.end_id)):
        if config[name] != index - 1:
            _checks.fail(_WHO, name, f"be {index - 1}, as in {table}", config[name])
    return source, target


def _vocabulary(
    folder: Path, file: str, name: str, size: int, settings: Mapping[str, Any]
) -> MarianVocabulary:
    """A vocabulary, from the sentencepiece model in `file` and the table in `name`."""
    pieces, table = _bytes(_WHO, folder, file), _json(_WHO, folder, name)
    ids = list(table.values())
    if len(ids) != size or {*map(type, ids)} != {int} or sorted(ids) != list(range(size)):
        expected = f"number its entries from 0 to {size - 1}, as in config.json"
        _checks.fail(_WHO, name, expected, f"{len(table)} entries")
    words = ["<pad>", *sorted(table, key=table.__getitem__)]
    found = []
    for special, default in _SPECIAL.items():
        token: Any = settings.get(special, default)
        token = token.get("content") if isinstance(token, dict) else token
        if not isinstance(token, str) or token not in table:
            _checks.fail(_WHO, name, f"have the entry {token!r}", f"{len(table)} entries")
        found.append(table[token] + 1)
    unknown, begin, end = found
    words[begin] = "<bos>"  # Marian decodes from its padding token
    clean_up = bool(settings.get("clean_up_tokenization_spaces"))
    try:
        return MarianVocabulary(pieces, words, unknown, begin, end, clean_up)
    except ValueError as error:
        raise ValueError(f"{_WHO}: {file} with {name}: {error}") from None


def _weights(folder: Path) -> dict[str, Any]:
    for path in (folder / "model.safetensors", folder / "pytorch_model.bin"):
        if path.is_file():
            return _content(path)
        if (folder / f"{path.name}.index.json").is_file():
            return _sharded(folder, f"{path.name}.index.json")
    expected = "be in the folder, or pytorch_model.bin, or the .index.json of one in shards"
    _checks.fail(_WHO, "model.safetensors", expected, str(folder), error=FileNotFoundError)


def _sharded(folder: Path, index: str) -> dict[str, Any]:
    """The weights in the files that an index names."""
    files: Any = _json(_WHO, folder, index).get("weight_map")
    _checks.mapping(_WHO, f"weight_map of {index}", files)
    state: dict[str, Any] = {}
    for file in files.values():
        if not isinstance(file, str) or PureWindowsPath(file).name != file:
            _checks.fail(_WHO, index, "name files in the folder", file)
        if not (folder / file).is_file():
            expected = f"be in the folder, as {index} says"
            _checks.fail(_WHO, file, expected, str(folder), error=FileNotFoundError)
    for file in dict.fromkeys(files.values()):
        found = _content(folder / file)
        _checks.mapping(_WHO, file, found)
        for name in found.keys() & state.keys():
            _checks.fail(_WHO, file, "have no tensor of another shard", name)
        state |= found
    for name in files.keys() - state.keys():
        _checks.fail(_WHO, files[name], f"have each tensor that {index} lists", f"no {name}")
    return state


def _content(path: Path) -> dict[str, Any]:
    """The weights in a file."""
    if path.suffix == ".safetensors":
        load = _optional.find("safetensors.numpy", "marian", _WHO).load_file
    else:
        try:
            import torch
        except ImportError:
            raise ImportError(f"{_WHO} needs PyTorch for {path}: pip install torch") from None
        load = functools.partial(torch.load, map_location="cpu", weights_only=True)  # runs no code
    try:
        return load(path)
    except Exception as error:  # each library raises its own
        kind = type(error).__name__
        return _checks.fail(_WHO, path.name, f"be a file of weights alone ({kind})", str(path))


def _check_sizes(config: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Raises for sizes far beyond the weights, before a model of these sizes is built."""
    _checks.mapping(_WHO, "weights", state)
    width, longest = config["d_model"], config["max_position_embeddings"]
    if longest > _MOST_POSITIONS:
        _checks.fail(_WHO, "max_position_embeddings", f"be at most {_MOST_POSITIONS}", longest)
    layers = sum(
        config[f"{side}_layers"] * (attentions * width + config[f"{side}_ffn_dim"])
        for side, attentions in (("encoder", 2), ("decoder", 4))
    )
    least = width * (config["vocab_size"] + 2 * layers)
    found = sum(math.prod(getattr(array, "shape", ())) for array in state.values())
    if found < least:
        expected = f"hold at least {least:,} numbers, for the sizes in config.json"
        _checks.fail(_WHO, "weights", expected, f"{found:,} numbers")


def _forbid_padding(model: Transformer, padding: int, renormalized: bool | None) -> None:
    """Makes the model never predict Marian's padding, the entry `padding`."""
    output = model.output_dense
    kernel, bias = np.array(output.kernel), np.array(output.bias)
    kernel[:, 0], bias[0] = 0, NEVER
    if not renormalized:  # entry 0, which no search predicts, gets the probability of padding
        kernel[:, 0], bias[0] = kernel[:, padding], bias[padding]
    kernel[:, padding], bias[padding] = 0, NEVER
    output.kernel.assign(kernel)
    output.bias.assign(bias)
