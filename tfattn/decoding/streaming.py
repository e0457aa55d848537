"""Tokens and words as soon as they are certain."""

import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from tfattn import _checks
from tfattn._types import Step
from tfattn.decoding import translation
from tfattn.decoding.arguments import Settings
from tfattn.decoding.beams import beam_search, plan_beams
from tfattn.decoding.greedy import greedy_search, plan_greedily
from tfattn.decoding.plan import Plan, Progress
from tfattn.decoding.sampling import plan_samples, sample

__all__ = ["stream", "translate_stream"]

_PLANS = {greedy_search: plan_greedily, sample: plan_samples, beam_search: plan_beams}
_STEPS = 4  # at a time: a call costs about as much as a step of a small model
_CUT = "\N{REPLACEMENT CHARACTER}"  # of a character of which not all bytes are there


def stream(
    step: Step,
    state: Any,
    max_length: int,
    search: Callable = greedy_search,
    begin_id: int = 2,
    end_id: int = 3,
    padding_id: int = 0,
    steps: int = _STEPS,
) -> Iterator[int]:
    """The tokens of one sentence, each as soon as it is certain.

    They are those of `search`, up to the end token (included). Greedy search and sampling are
    certain of what they have written; beam search, of what all of its beams begin with. The search
    is compiled as two functions, for its beginning and for going on; further calls compile nothing.

    Args:
        step, state, max_length: see `greedy_search`. `state` has one row.
        search: `greedy_search`, `sample` or `beam_search`, or a `functools.partial` of one with
            options by name, others than the arguments of `stream`.
        begin_id, end_id, padding_id: ints of at least 0.
        steps: positive int, how many steps run between two looks at what is certain.
    Returns:
        An iterator of ints.
    Raises:
        ValueError: `search` is another function, or has options that `stream` sets; an argument is
            one that the search refuses. While it is read: the rules leave no token to write.
    Example: a step that counts up.
        >>> def step(tokens, position, state):
        ...     return keras.ops.one_hot(keras.ops.take(tokens, position, axis=1) + 1, 8), state
        >>> list(tfattn.decoding.stream(step, (), max_length=6, end_id=5))
        [3, 4, 5]
    """
    _checks.positive_int("stream", "max_length", max_length)
    _checks.positive_int("stream", "steps", steps)
    ids = {"begin_id": begin_id, "end_id": end_id, "padding_id": padding_id}
    return _certain(_planned("stream", search, step, state, max_length, **ids), int(steps))


def translate_stream(
    model: Any,
    sentence: str,
    source_vocabulary: Any,
    target_vocabulary: Any,
    search: Callable = greedy_search,
    max_length: int | None = None,
) -> Iterator[str]:
    """The translation of one sentence, piece by piece, each as soon as it is certain.

    Args:
        model, source_vocabulary, target_vocabulary, max_length: see `translate`.
        sentence: a string.
        search: see `stream`. Its rules are for this sentence.
    Returns:
        An iterator of strings, which are together what `translate` gives for the sentence.
    Raises:
        ValueError: as `translate` and `stream` do; or a tokenizer's `join` changes the beginning of
            a text when words come after it.
    Example:
        >>> words = tfattn.data.Vocabulary(["a", "bird", "sings"])
        >>> model = Transformer(len(words), num_layers=1, width=8, num_heads=2, hidden_dim=16)
        >>> pieces = translate_stream(model, "a bird sings", words, words, max_length=5)
        >>> "".join(pieces) == translate(model, ["a bird sings"], words, words, max_length=5)[0]
        True
    """
    who = "translate_stream"
    _checks.string(who, "sentence", sentence)
    translation.check_parts(who, model, source_vocabulary, target_vocabulary)
    if max_length is not None:
        _checks.positive_int(who, "max_length", max_length)
    rules = translation.rules_of(who, search, 1)
    translation.check_read(who, model, rules)
    ids = source_vocabulary.encode(sentence)
    longest = getattr(model, "max_source_length", None)
    translation.check_reach(who, "sentence", sentence, len(ids), longest)
    if not ids:
        _plan_of(who, search)
        return iter(())
    source = translation.padded([[*ids, source_vocabulary.end_id]], 1, longest)
    limits = max_length or translation.limits_of(model, source)
    state = translation.encoded(model, source, int(np.max(limits)), rules)
    ids = translation.special_ids(target_vocabulary)
    plan = _planned(who, search, model.step, state, limits, **ids)
    return _pieces(_certain(plan, _STEPS), target_vocabulary)


def _planned(
    who: str, search: Callable, step: Step, state: Any, max_length: Any, **ids: int
) -> Plan:
    plan, options = _plan_of(who, search)
    return plan(step, state, 1, max_length, **{**options, **ids})


def _plan_of(who: str, search: Callable) -> tuple[Callable[..., Plan], dict[str, Any]]:
    """(What makes the plan of a search, its options.)"""
    options, function = {}, search
    if isinstance(search, functools.partial):
        function, options = search.func, dict(search.keywords)
    known = isinstance(function, Callable) and function in _PLANS
    if not known or getattr(search, "args", ()):
        names = ", ".join(f"`{each.__name__}`" for each in _PLANS)
        _checks.fail(who, "search", f"be one of {names}, or a partial with options by name", search)
    translation.check_options(who, search)
    # Neither goes into the stream.
    left = {"return_state", "return_trace"}
    return _PLANS[function], {name: option for name, option in options.items() if name not in left}


def _certain(plan: Plan, steps: int) -> Iterator[int]:
    """Each token of the first row, once nothing can change it."""
    given, progress = 0, plan.begin(steps)
    while True:
        is_done, tokens = _look(plan, progress)
        yield from tokens[given:]
        given = max(given, len(tokens))
        if is_done:
            return
        progress = plan.go_on(progress, steps)


def _look(plan: Plan, progress: Progress) -> tuple[bool, list[int]]:
    """(Whether the search is done, the tokens that are certain.)"""
    numpy = keras.ops.convert_to_numpy
    found = progress.found
    position, most = int(progress.position), found.tokens.shape[1] - 1
    if position >= most or numpy(found.done).all():
        tokens = numpy(plan.end(progress)["tokens"])[0]
        return True, _written(tokens, plan.key.settings)
    rows = numpy(found.tokens)[numpy(plan.alive(found)), 1 : position + 1]
    common = []
    # As far as the shortest goes.
    for tokens in zip(*(_written(row, plan.key.settings) for row in rows), strict=False):
        if len(set(tokens)) > 1:
            break
        common.append(tokens[0])
    return False, common


def _written(row: np.ndarray, settings: Settings) -> list[int]:
    """A row without the padding after it, of which the first may be the end token."""
    count = np.max(np.flatnonzero(row != settings.padding_id), initial=-1) + 1
    return row[: count + (settings.padding_id == settings.end_id)].tolist()


def _pieces(tokens: Iterator[int], vocabulary: Any) -> Iterator[str]:
    """The text, in parts: what the next token leaves as it is.

    A token may change the end of the text before it: it completes a character that is there by
    halves, or a tokenizer joins the two.
    """
    known, given, before = [], "", ""
    for token in tokens:
        known.append(token)
        text = vocabulary.decode(np.array(known))
        certain = os.path.commonprefix([before, text]).rstrip(_CUT)
        if len(certain) > len(given):
            yield _rest(certain, given)
            given = certain
        before = text
    if rest := _rest(before, given):
        yield rest


def _rest(text: str, given: str) -> str:
    if not text.startswith(given):
        expected = (
            "leave the text of some tokens as it is when more tokens come, but for the end, which "
            "the next one may change; `translate` takes any"
        )
        _checks.fail("translate_stream", "target_vocabulary", expected, f"{text!r} after {given!r}")
    return text[len(given) :]
