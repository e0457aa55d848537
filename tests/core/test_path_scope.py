"""The scope `tfattn.attention_path`: the calls that it covers, and its effect on an export."""

import threading

import keras
import numpy as np
import pytest

import tfattn
from tests.helpers.blockwise import assert_close, call_of
from tests.helpers.paths import PATHS, streaming
from tests.helpers.tensors import BACKEND, as_tensor, tf
from tfattn.core.engine import dense, dispatch

B, T, S, D = 2, 7, 11, 5
DRAW = np.random.default_rng(3)
QUERY, VALUE = (DRAW.normal(size=(B, n, D)).astype("float32") for n in (T, S))


@pytest.fixture
def taken(monkeypatch):
    """The paths that calls take, one after the other."""
    paths = []
    for module, name in ((dense, "dense"), (streaming(), "streamed")):
        real = module.run

        def noted(*args, real=real, name=name, **kwargs):
            paths.append(name)
            return real(*args, **kwargs)

        monkeypatch.setattr(module, "run", noted)
    return paths


def path_here(**options):
    """The path that a call takes here."""
    streams = dispatch.streams(call_of(*map(as_tensor, (QUERY, VALUE)), **options))
    return {True: "streamed", False: "dense"}[streams]


@pytest.mark.parametrize("path", PATHS)
def test_path_scope_sets_path_of_call(path, taken):
    (other,) = {*PATHS} - {path}
    with tfattn.attention_path(path):
        here = tfattn.attend(QUERY, VALUE, mask=tfattn.masks.causal())
        # A path that the call names comes before the scope.
        there = tfattn.attend(QUERY, VALUE, mask=tfattn.masks.causal(), path=other)
    assert taken == [path, other]
    assert_close([here], [there])


def test_path_scope_sets_path_of_models(taken):
    model = tfattn.CausalLM(13, num_layers=1, width=6, num_heads=2, hidden_dim=5)
    with tfattn.attention_path("streamed"):
        model(np.array([[2, 3, 5]]))
    assert taken == ["streamed"]


def test_path_scope_inner_counts_and_none_leaves_choice_to_sizes():
    short = "dense"
    assert path_here(return_weights=False) == short
    with tfattn.attention_path("streamed"):
        with tfattn.attention_path("dense"):
            assert dispatch.wanted_path() == "dense"
        with tfattn.attention_path(None):
            assert path_here(return_weights=False) == short
        assert path_here(return_weights=False) == "streamed"
    assert dispatch.wanted_path() is None


def test_path_scope_object_is_entered_again():
    streamed = tfattn.attention_path("streamed")
    for _ in range(2):
        with streamed:
            with streamed, tfattn.attention_path("dense"):
                assert dispatch.wanted_path() == "dense"
            assert dispatch.wanted_path() == "streamed"
        assert dispatch.wanted_path() is None


def test_path_scope_ends_with_an_error():
    with pytest.raises(RuntimeError, match="inside"), tfattn.attention_path("dense"):
        raise RuntimeError("inside")
    assert dispatch.wanted_path() is None


def test_path_scope_belongs_to_its_thread():
    shared, gate, seen = tfattn.attention_path("streamed"), threading.Barrier(3), {}

    def run(name, manager):
        seen[name, "before"] = dispatch.wanted_path()
        with manager:
            gate.wait()  # all three are in their scopes
            seen[name] = dispatch.wanted_path()
            gate.wait()
        seen[name, "after"] = dispatch.wanted_path()

    managers = {"dense": tfattn.attention_path("dense"), "streamed": shared, "again": shared}
    with tfattn.attention_path("dense"):
        threads = [threading.Thread(target=run, args=pair) for pair in managers.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert {seen[name] for name in ("streamed", "again")} == {"streamed"}
    assert seen["dense"] == "dense"
    assert {seen[name, when] for name in managers for when in ("before", "after")} == {None}


def test_path_scope_streamed_still_returns_weights():
    with tfattn.attention_path("streamed"):
        _, weights = tfattn.attend(QUERY, VALUE, return_weights=True)
    np.testing.assert_allclose(np.sum(weights, -1), 1.0, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.tensorflow
def test_path_scope_holds_while_function_is_traced(taken):
    @tf.function
    def within(x):
        with tfattn.attention_path("dense"):
            return tfattn.attend(x, x)

    unknown = tf.TensorSpec((None, None, D))
    for graph in (within, tfattn.attention_path("dense")(lambda x: tfattn.attend(x, x))):
        taken.clear()
        graph = tf.function(graph).get_concrete_function(unknown)
        assert taken == ["dense"]
        assert not _holds_both(graph)
    assert _holds_both(tf.function(lambda x: tfattn.attend(x, x)).get_concrete_function(unknown))


@pytest.mark.tensorflow
@pytest.mark.slow
def test_path_scope_later_leaves_traced_graph_as_it_is(taken):
    model = keras.Sequential([keras.Input((None, D)), _SelfAttention()])
    unknown = [tf.TensorSpec((None, None, D))]
    both = tf.function(model, input_signature=unknown)
    inside = tf.function(model, input_signature=unknown)
    for graph, manager in (
        (both, tfattn.attention_path(None)),
        (inside, tfattn.attention_path("dense")),
        (tf.function(model, input_signature=unknown), tfattn.attention_path("streamed")),
    ):
        with manager:
            graph(QUERY)
    taken.clear()
    with tfattn.attention_path("streamed"):
        for graph in (both, inside):
            assert_close([graph(VALUE)], [model(VALUE)])
    assert taken == ["streamed"] * 2  # the two eager calls: no graph was traced again
    assert _holds_both(both.get_concrete_function())
    assert not _holds_both(inside.get_concrete_function())


def _holds_both(graph):
    return any("Case" in node.op for node in graph.graph.as_graph_def().node)


class _SelfAttention(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.attention = tfattn.MultiHeadAttention(1, 3)

    def build(self, shape):
        self.attention.build(shape, shape)

    def call(self, x):
        return self.attention(x, x, use_causal_mask=True)


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    "format, wanted",
    [("onnx", None), ("litert", "dense"), ("tf_saved_model", None), ("tf_saved_model", "streamed")],
)
def test_path_scope_of_export_is_one_path_by_format(format, wanted, monkeypatch):
    seen = {}

    def noted(self, filepath, format, verbose=None, input_signature=None):
        seen[type(self)] = dispatch.wanted_path(), input_signature

    # Importing this package has put Keras's method into the scope of its format.
    assert keras.Model.export.__wrapped__
    monkeypatch.setattr(keras.Model, "export", dispatch.in_scope_of_format(noted))
    plain = keras.Sequential([keras.Input((D,)), keras.layers.Dense(3)])
    language_model = tfattn.CausalLM(13, num_layers=1, width=6, num_heads=2, hidden_dim=5)
    with tfattn.attention_path(wanted):
        plain.export("file", format)
        language_model.export("file", format=format)
    expected = wanted or (None if format == "tf_saved_model" else "dense")
    assert {path for path, _ in seen.values()} == {expected}
    [ids] = seen[type(language_model)][1]
    assert (ids.shape, ids.dtype, ids.name) == ((None, None), "int32", "ids")
    with tfattn.attention_path("streamed"):
        for model in (plain, language_model):
            with pytest.raises(ValueError, match="^export: `format` must be .*format='onnx'$"):
                model.export("file", "onnx")


def test_export_of_model_with_own_call_is_that_of_keras(monkeypatch):
    class Both(tfattn.CausalLM):
        def call(self, inputs):
            return super().call(inputs["ids"])

    seen = []
    monkeypatch.setattr(
        keras.Model, "export", lambda self, *_, **options: seen.append(options["input_signature"])
    )
    model = Both(13, num_layers=1, width=6, num_heads=2, hidden_dim=5)
    model.export("file")
    model.export("file", input_signature=["given"])
    assert seen == [None, ["given"]]


@pytest.mark.skipif(BACKEND != "torch", reason="about tracing on PyTorch")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit.*")
def test_export_on_pytorch_from_placeholders_of_size_one_serves_any_length(taken):
    import torch

    def function(query, value):
        return tfattn.attend(query, value, mask=tfattn.masks.causal())

    traced = torch.jit.trace(function, (torch.ones(1, 1, D),) * 2, check_trace=False)
    assert taken == ["dense"]
    operands = [*map(as_tensor, (QUERY, VALUE))]
    assert_close([traced(*operands)], [function(*operands)])


@pytest.mark.parametrize("wrong", ["Dense", ["dense"], np.array(["dense"])])
def test_path_scope_of_unknown_path_is_refused(wrong):
    with pytest.raises(
        ValueError, match="^tfattn.attention_path: `path` must be None, 'dense' or 'streamed"
    ):
        tfattn.attention_path(wrong)
    with pytest.raises(ValueError, match="^attend: `path` must be None, 'dense' or 'streamed'. Re"):
        tfattn.attend(QUERY, VALUE, path=wrong)


@pytest.mark.slow
def test_path_scope_streamed_on_dense_backend_is_refused(monkeypatch):
    monkeypatch.setattr(dispatch, "STREAMING_BACKENDS", ())
    with tfattn.attention_path("dense"):
        assert tfattn.attend(QUERY, QUERY).shape == QUERY.shape
    with pytest.raises(
        ValueError, match="tfattn.attention_path: `path` must be 'dense' or None with this backend"
    ):
        tfattn.attention_path("streamed")


def test_path_scope_of_a_generator_closed_within_another_ends_alone():
    def generator():
        with tfattn.attention_path("dense"):
            yield

    held = generator()
    next(held)
    with tfattn.attention_path(None):
        held.close()
        assert dispatch.wanted_path() is None
        with tfattn.attention_path("dense"):
            assert dispatch.wanted_path() == "dense"
    assert dispatch._open.get() == ()
