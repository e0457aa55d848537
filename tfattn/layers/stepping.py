"""A model's steps on one token of each row, with caches of attention."""

import contextvars
import dataclasses
from collections.abc import Iterator
from typing import Any

from keras import ops

from tfattn import _checks
from tfattn._shared import Past
from tfattn._types import Tensor
from tfattn.core import biases, masks
from tfattn.core.call import AttentionCall
from tfattn.core.objects import flatten


@dataclasses.dataclass
class Stepping:
    """A run of a model in which attention has caches, and positions are not counted from 0.

    Layers that mix or count tokens ask in each call for its `role`: "self" (of the target),
    "memory" (of the target, over a memory) or "source". A whole pass notes it by the target's
    length, which no source has; a step is told them in the order of calls.
    """

    length: int | None  # of the target in a whole pass, and of the first caches
    position: Any = None  # scalar int32, of the step's token; None in a whole pass
    roles: Iterator[str] = iter(())  # of a step
    caches: Iterator[Any] = iter(())  # of each attention over a target; none before the first step
    kept: list[Any] = dataclasses.field(default_factory=list)  # roles of a whole pass, or caches
    limits: dict[str, int] = dataclasses.field(default_factory=dict)  # positions by role, if any

    def role(self, queries: Any, keys: Any = None, limit: int | None = None) -> str:
        """The role of a call over so many queries and keys, by default as many keys; `limit` is the
        number of positions that the layer has.
        """
        if self.position is not None:
            if (told := next(self.roles, None)) is None:
                raise ValueError("a step has more calls of attention than the whole pass had")
            return told
        is_memory = keys not in (None, queries)
        role = "source" if queries != self.length else "memory" if is_memory else "self"
        self.kept.append(role)
        if limit is not None:
            self.limits[role] = min(limit, self.limits.get(role, limit))
        return role


# The run that encloses a layer's call, if any.
stepping = contextvars.ContextVar[Stepping | None]("tfattn_stepping", default=None)


def over_cache(who: str, call: AttentionCall, project: Any) -> tuple[AttentionCall, Any]:
    """The call with keys and values from `project(value, key, start=0)`, and the query's position.

    In a step they are the cache's, and masks and biases become a bias at the query's position: what
    is hidden in a cache is finite, and a mask would need a check for NaN, which costs more than the
    attention of one query. Otherwise the position is None.
    """
    run = stepping.get()
    role = "source" if run is None else run.role(call.query.shape[1], call.key.shape[1])
    padding, rules = _padding_and_rules(who, call) if role == "self" else ([], [])
    if run is None or run.position is None or role == "source":
        keys, values = project(call.value, call.key)
        return dataclasses.replace(call, key=keys, value=values), None
    cache, position = next(run.caches, None), run.position if role == "self" else None
    if role == "self":
        new = [*project(call.value, call.key, position), *_bias(call, masks.all_of(*padding))]
        if cache is None:
            cache = [Past(ops.repeat(ops.zeros_like(x), run.length, axis=-2)) for x in new]
        cache = [written(x.tensor, y, position) for x, y in zip(cache, new, strict=True)]
        run.kept.append(list(map(Past, cache)))
        added = _bias(call, masks.all_of(masks.causal(), *rules), call.bias, cache[0], position)
        added += [ops.swapaxes(x, -1, -2) for x in cache[2:]]  # (B, 1, L)
    else:
        hiding = call.mask, call.bias, call.key
        cache = cache or [*project(call.value, call.key), *_bias(call, *hiding)]
        run.kept.append(cache)
        added = cache[2:]
    parts = [biases.explicit(x) for x in added]
    bias = sum(parts[1:], parts[0]) if parts else None
    return dataclasses.replace(call, key=cache[0], value=cache[1], mask=None, bias=bias), position


def _padding_and_rules(who: str, call: AttentionCall) -> tuple[list[Any], list[Any]]:
    """The masks of the call; raises for other arrays, of which a step sees one pair of tokens."""
    parts: list[Any] = getattr(call.mask, "_parts", lambda: [call.mask] * (call.mask is not None))()
    padding = [x for x in parts if isinstance(x, masks.explicit) and x._ignores_queries]
    rules = [x for x in parts if x not in padding]
    arrays = [x for x in rules if flatten(x)[0]] + [call.bias]
    if len(arrays) > 1 or isinstance(call.bias, biases.explicit):
        expected = "be an object without arrays where a `Stepper` decodes, such as masks.causal()"
        _checks.fail(who, "attention_mask or bias", expected, arrays[0])
    return padding, rules


def _bias(call: Any, mask: Any, bias: Any = None, keys: Any = None, start: Any = 0) -> list[Tensor]:
    """Mask and bias at position `start` over keys `(..., s, P)`, `(B, 1, s)` or `(B, H, 1, s)`."""
    grid = masks.Grid.whole(1, 1 if keys is None else ops.shape(keys)[-2], offset=start)
    if mask is not None:
        hidden = biases.explicit(ops.where(mask.on(grid), 0.0, -float("inf")))
        bias = hidden if bias is None else hidden + bias
    if bias is None:
        return []
    numbers = bias.on(grid, *bias.parameters())
    rows = (ops.shape(call.query)[0], *(1,) * max(2, len(numbers.shape) - 1))
    return [numbers + ops.zeros(rows, numbers.dtype)]


def written(cache: Tensor, new: Tensor, position: Any) -> Tensor:
    """A cache `(B, ..., L, P)` with `new`, `(B, ..., 1, P)`, at `position`.

    Not with `ops.slice_update`, which TensorFlow compiles again for each number of rows. A position
    beyond L is an error on a CPU, and is ignored under XLA and on a GPU.
    """
    *_, length, width = ops.shape(cache)
    rows = ops.reshape(cache, (-1, length, width))  # (B·G, L, P)
    places = ops.arange(ops.shape(rows)[0], dtype="int32")
    places = ops.stack([places, ops.zeros_like(places) + position], axis=-1)  # (B·G, 2)
    rows = ops.scatter_update(rows, places, ops.reshape(new, (-1, width)))
    return ops.reshape(rows, ops.shape(cache))
