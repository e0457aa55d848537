"""Folders of Marian's translators, as `transformers` publishes them."""

import functools
import json
import os
from collections.abc import Mapping
from pathlib import Path, PureWindowsPath
from typing import Any

import numpy as np

from tfattn import _checks, _optional
from tfattn.convert import weights
from tfattn.convert.marian import NEVER, from_marian
from tfattn.data.marian import MarianVocabulary
from tfattn.decoding import GreedySearch, PooledBeamSearch, rules
from tfattn.models.transformer import Transformer

_WHO = "load_marian"
_GENERATION = "generation_config.json"
# The entries of `tokenizer_config.json` and their defaults.
_SPECIAL = {"unk_token": "<unk>", "pad_token": "<pad>", "eos_token": "</s>"}
_IDS = ("pad_token_id", "eos_token_id", "decoder_start_token_id")
# Settings by which `generate` changes the scores, and the values that change nothing.
_UNCHANGED: dict[str, Any] = {
    **dict.fromkeys(("repetition_penalty", "encoder_repetition_penalty", "num_beam_groups"), 1),
    **dict.fromkeys(("no_repeat_ngram_size", "encoder_no_repeat_ngram_size"), 0),
    **dict.fromkeys(("min_length", "min_new_tokens", "diversity_penalty", "penalty_alpha"), 0),
    **dict.fromkeys(("suppress_tokens", "begin_suppress_tokens"), []),
    **dict.fromkeys(("sequence_bias", "exponential_decay_length_penalty")),
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
        ValueError: a file is damaged or does not fit the others; a feature is not supported, by
            name.
        ImportError: safetensors or sentencepiece is not installed, or PyTorch for
            `pytorch_model.bin`.
    """
    folder, config, generation = _read(_WHO, folder)
    settings = _json(_WHO, folder, "tokenizer_config.json", {})
    _check_settings(config, generation, settings)
    vocabularies = _vocabularies(folder, config, settings)
    _check_ids(config, generation)
    state = _weights(folder)
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


def _json(
    who: str, folder: Path, name: str, default: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    if default is not None and not (folder / name).exists():
        return dict(default)
    try:
        found = json.loads((folder / name).read_bytes())
    except ValueError:
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
    _checks.mapping(_WHO, "config.json", config, ("vocab_size", *_IDS))
    padding, begin = config["pad_token_id"], config["decoder_start_token_id"]
    weights.refuse(_WHO, "decoder_start_token_id", begin != padding, "it must be `pad_token_id`")
    bad = generation.get("bad_words_ids")
    only = "only padding can be forbidden; use tfattn.rules.ForbiddenTokens for others"
    weights.refuse(_WHO, "bad_words_ids", bad not in (None, [], [[padding]]), only)
    _check_unchanged(_WHO, generation)
    # A published file lists the three special tokens as added.
    added = settings.get("added_tokens_decoder") or {}
    only = "only the end, unknown and padding tokens are supported"
    weights.refuse(_WHO, "added_tokens_decoder", len(added) > len(_SPECIAL), only)


def _check_ids(config: Mapping[str, Any], generation: Mapping[str, Any]) -> None:
    """Raises if `generate` would use other special tokens than the vocabularies."""
    for name in (*_IDS, "forced_eos_token_id"):
        wanted = config[name.removeprefix("forced_")]
        if generation.get(name) not in (None, wanted):
            expected = f"be {wanted} in {_GENERATION}, as in config.json"
            _checks.fail(_WHO, name, expected, generation[name])


def _check_unchanged(who: str, generation: Mapping[str, Any]) -> None:
    for name, neutral in _UNCHANGED.items():
        reason = "it is an option of decoding; see tfattn.rules"
        weights.refuse(who, name, generation.get(name) not in (None, neutral), reason)


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
    pieces, table = (folder / file).read_bytes(), _json(_WHO, folder, name)
    if sorted(table.values()) != list(range(size)):
        expected = f"number its entries from 0 to {size - 1}, as in config.json"
        _checks.fail(_WHO, name, expected, f"{len(table)} entries")
    words = ["<pad>", *sorted(table, key=table.__getitem__)]
    found = []
    for special, default in _SPECIAL.items():
        token: Any = settings.get(special, default)
        token = token["content"] if isinstance(token, dict) else token
        if token not in table:
            _checks.fail(_WHO, name, f"have the entry {token!r}", f"{len(table)} entries")
        found.append(table[token] + 1)
    unknown, begin, end = found
    words[begin] = "<bos>"  # Marian decodes from its padding token
    clean_up = bool(settings.get("clean_up_tokenization_spaces"))
    return MarianVocabulary(pieces, words, unknown, begin, end, clean_up)


def _weights(folder: Path) -> dict[str, Any]:
    for path in (folder / "model.safetensors", folder / "pytorch_model.bin"):
        if path.is_file():
            return _content(path)
        if path.with_name(f"{path.name}.index.json").is_file():
            return _sharded(folder, f"{path.name}.index.json")
    expected = "be in the folder, or pytorch_model.bin, or the .index.json of one in shards"
    _checks.fail(_WHO, "model.safetensors", expected, str(folder), error=FileNotFoundError)


def _sharded(folder: Path, index: str) -> dict[str, Any]:
    """The weights in the files that an index names."""
    files: Any = _json(_WHO, folder, index).get("weight_map")
    _checks.mapping(_WHO, f"weight_map of {index}", files)
    for file in files.values():
        if not isinstance(file, str) or PureWindowsPath(file).name != file:
            _checks.fail(_WHO, index, "name files in the folder", file)
        if not (folder / file).is_file():
            expected = f"be in the folder, as {index} says"
            _checks.fail(_WHO, file, expected, str(folder), error=FileNotFoundError)
    state: dict[str, Any] = {}
    for file in dict.fromkeys(files.values()):
        state |= _content(folder / file)
    return state


def _content(path: Path) -> dict[str, Any]:
    """The weights in a file, which runs no code."""
    if path.suffix == ".safetensors":
        load = _optional.find("safetensors.numpy", "marian", _WHO).load_file
    else:
        try:
            import torch
        except ImportError:
            raise ImportError(f"{_WHO} needs PyTorch for {path}: pip install torch") from None
        load = functools.partial(torch.load, map_location="cpu", weights_only=True)
    try:
        return dict(load(path))
    except Exception as error:  # each library raises its own
        expected = f"be a file of weights alone ({type(error).__name__})"
        return _checks.fail(_WHO, path.name, expected, str(path))


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
