"""Deliberate breaks of the package, each with the tests that must catch it.

    python tests/breaks.py                   # all of them, in a few minutes
    python tests/breaks.py --only softmax    # those whose name begins so

Each break replaces one piece of text in a temporary copy of the tree, and runs the tests that are
named with it. A break that they let pass, or whose text is no longer there, is an error. The tests
must pass in the copy before anything is broken. TensorFlow is imported once, and each run is a fork
of that.

A break belongs here where a plausible slip would cost users something. A change of the code that
moves a break's text moves the break with it.
"""

import argparse
import contextlib
import io
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import time
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[1]
SECONDS = 600  # for one run


class Break(NamedTuple):
    """`old` stands once in the file `path`; with `new` in its place, one of `tests` must fail."""

    name: str
    path: str
    old: str
    new: str
    tests: str
    what: str


BREAKS = [
    # Arguments.
    Break(
        "checks-zero",
        "tfattn/_checks.py",
        "if not _is_int(value) or value <= 0:",
        "if not _is_int(value) or value < 0:",
        "tests/test_recurrent.py::test_bad_arguments_are_refused",
        "0 passes for a positive integer",
    ),
    Break(
        "checks-everything-dropped",
        "tfattn/_checks.py",
        "if not _is_real(value) or not 0 <= value < 1:",
        "if not _is_real(value) or not 0 <= value <= 1:",
        "tests/test_recurrent.py::test_bad_arguments_are_refused",
        "a dropout of 1 is let in",
    ),
    Break(
        "gradients-stay",
        "tfattn/_gradients.py",
        "graph._tfattn_gradients[name] = gradient",
        "graph._tfattn_gradients[name] = framework.kept = gradient",
        "tests/test_gradients.py::test_a_graph_goes_with_its_function",
        "what belongs to a graph keeps it alive",
    ),
    # Weights: softmax, kernels, scores.
    Break(
        "softmax-empty-row",
        "tfattn/core/softmax.py",
        "_softmax(ops.where(visible, scores, LOWEST)) * some",
        "_softmax(ops.where(visible, scores, LOWEST))",
        "tests/test_softmax.py::test_row_without_keys_is_exactly_zero_with_zero_gradient",
        "a query with nothing to attend to attends to everything",
    ),
    Break(
        "softmax-nan-hidden",
        "tfattn/core/softmax.py",
        'ops.not_equal(scores, -float("inf"))',
        "ops.isfinite(scores)",
        "tests/test_softmax.py::test_visible_nan_is_not_hidden",
        "a broken score passes for a masked one",
    ),
    Break(
        "kernels-gaussian",
        "tfattn/core/kernels.py",
        "return -0.5 * squared",
        "return -squared",
        "tests/test_kernels.py::test_the_exponential_is_the_textbook_kernel",
        "the bandwidth of a Gaussian is off by √2",
    ),
    Break(
        "kernels-edge",
        "tfattn/core/kernels.py",
        "ops.where(squared >= 1.0,",
        "ops.where(squared > 1.0,",
        "tests/test_kernels.py::test_the_edge_belongs_to_the_boxcar_alone",
        "a key at distance 1 counts for a kernel that has ended there",
    ),
    Break(
        "scores-scale",
        "tfattn/layers/attention/scores.py",
        "query.shape[-1] ** -0.5 if self.scale is None",
        "query.shape[-1] ** -1.0 if self.scale is None",
        "tests/test_scores.py::test_scores_and_attention_equal_the_oracle",
        "dot products are divided by D and not by its root",
    ),
    Break(
        "scores-temperature",
        "tfattn/layers/attention/scores.py",
        "_unit(query) / self.temperature",
        "_unit(query) * self.temperature",
        "tests/test_scores.py::test_scores_and_attention_equal_the_oracle",
        "a smaller temperature makes weights flatter",
    ),
    # Attention layers.
    Break(
        "attention-dropout-at-inference",
        "tfattn/layers/attention/base.py",
        "self.dropout if self.dropout and training else 0.0",
        "self.dropout",
        "tests/test_attention_layers.py::test_dropout_is_active_in_training_only",
        "weights are dropped when nobody trains",
    ),
    Break(
        "attention-mask-lost",
        "tfattn/layers/attention/base.py",
        "output = self._carry((output, query_mask))",
        "pass",
        "tests/test_attention_layers.py::test_query_mask_travels_on_with_the_output",
        "the mask of the queries ends with the first layer",
    ),
    Break(
        "attention-leave-one-out",
        "tfattn/layers/attention/nadaraya_watson.py",
        "~masks.window(1)",
        "masks.window(1)",
        "tests/test_nadaraya_watson.py::test_leave_one_out_equals_the_tiled_copies_of_the_posts",
        "a point is predicted from itself alone",
    ),
    Break(
        "attention-recording",
        "tfattn/layers/attention/recording.py",
        'recorded[f"{path}:{again}" if again else path] = weights',
        "recorded[path] = weights",
        "tests/test_recording.py::test_layer_that_is_called_twice_appears_twice",
        "the weights of a second call take the place of the first ones",
    ),
    Break(
        "heads-gate",
        "tfattn/layers/attention/multi_head.py",
        "output if gate is None else output * gate",
        "output",
        "tests/test_keras_arguments.py::test_a_gate_equals_keras",
        "a gate that is asked for gates nothing",
    ),
    Break(
        "heads-window",
        "tfattn/layers/attention/multi_head.py",
        "masks.every(super()._join_masks(*args), self._window())",
        "super()._join_masks(*args)",
        "tests/test_keras_arguments.py::test_a_sliding_window_equals_keras",
        "a sliding window hides nothing",
    ),
    Break(
        "heads-window-step",
        "tfattn/layers/attention/multi_head.py",
        "if window is not None and start is not None:",
        "if False:",
        "tests/test_keras_arguments.py::test_a_sliding_window_moves_with_cached_decoding",
        "a sliding window stays at the end of the cache",
    ),
    Break(
        "heads-axes-order",
        "tfattn/layers/attention/axes.py",
        "back = [order.index(axis) for axis in range(self.rank - 1)]",
        "back = list(order)",
        "tests/test_attention_axes.py::test_equals_keras_over_any_axes",
        "outputs over axes come back transposed",
    ),
    Break(
        "heads-axes-rows",
        "tfattn/layers/attention/axes.py",
        "lead += [1] * (len(rows) - len(lead)) if lead else []",
        "lead[:0] = [1] * (len(rows) - len(lead)) if lead else []",
        "tests/test_attention_axes.py::test_equals_keras_under_masks_of_every_rank",
        "a mask of the batch goes to a folded axis",
    ),
    Break(
        "heads-axes-lengths",
        "tfattn/layers/attention/axes.py",
        "ops.reshape(ops.broadcast_to(lengths, (*batch, each)), (-1, each))",
        "ops.reshape(lengths, (-1, each))",
        "tests/test_attention_axes.py::test_lengths_repeat_along_each_axis_of_one",
        "lengths that repeat along an axis are refused",
    ),
    Break(
        "projection-nameless-policies",
        "tfattn/layers/calls.py",
        "DTypePolicyMap(policies.default_policy.name, named)",
        "DTypePolicyMap(None, named)",
        "tests/test_projection.py::test_policies_of_a_map_without_a_default_come_back_from_a_file",
        "the policies of a map are lost in a file",
    ),
    Break(
        "projection-one-feature",
        "tfattn/layers/attention/projection.py",
        "if 1 not in self._features()[1:]:",
        "if True:",
        "tests/test_projection.py::test_quantised_heads_of_one_feature_get_their_own_biases",
        "quantised heads of one feature get the biases of others",
    ),
    Break(
        "field-notes-padding",
        "tfattn/layers/attention/base.py",
        'named = [("key_mask", of_key), ("value_mask", of_value)]',
        "named = []",
        "tests/test_field_notes.py::"
        "test_a_padded_batch_is_the_same_eagerly_in_a_graph_under_xla_and_in_fit",
        "masks that tensors carry are forgotten",
    ),
    Break(
        "field-notes-causal",
        "tfattn/layers/attention/base.py",
        "masks.causal() if use_causal_mask else None",
        "masks.causal() if use_causal_mask and not self.dropout else None",
        "tests/test_field_notes.py::"
        "test_a_later_token_changes_no_bit_before_it_whatever_else_is_asked_for",
        "the causal mask goes where there is dropout",
    ),
    Break(
        "field-notes-rate",
        "tfattn/layers/attention/base.py",
        "path=None if return_weights else",
        'path=None if return_weights else "dense" if self.dropout else',
        "tests/test_field_notes.py::"
        "test_a_dropout_rate_keeps_the_streamed_path_and_no_weights_come_unasked",
        "a dropout rate takes the dense path",
    ),
    Break(
        "field-notes-bias",
        "tfattn/core/paths/blockwise/block_bias.py",
        "bias = self.bias.on(grid, *self.parameters)",
        "self.bias.on(Grid.whole(grid.num_queries, grid.num_keys), *self.parameters)\n"
        "        bias = self.bias.on(grid, *self.parameters)",
        "tests/test_field_notes.py::test_no_more_than_a_block_is_asked_of_a_bias_at_once",
        "a bias is made for all pairs",
    ),
    Break(
        "field-notes-keyword",
        "conftest.py",
        "item.extra_keyword_matches.update(field_notes.keywords_of(item))",
        "field_notes.keywords_of(item)",
        "tests/test_field_notes.py::test_a_test_is_found_by_the_numbers_of_its_notes",
        "the tests of a note are not found by its number",
    ),
    Break(
        "masks-of-integers",
        "tfattn/core/pairs.py",
        "if number not in (0, 1):",
        "if False:",
        "tests/test_masks_of_integers.py::test_other_integers_are_refused",
        "any integers pass for a mask",
    ),
    # Positions, dropout, parts.
    Break(
        "positions-scaled",
        "tfattn/layers/positions/added.py",
        "return inputs * self.input_scale + vectors",
        "return (inputs + vectors) * self.input_scale",
        "tests/test_positional.py::test_inputs_are_scaled_and_positions_are_not",
        "positions grow with the width",
    ),
    Break(
        "positions-cosine-first",
        "tfattn/layers/positions/added.py",
        "[ops.sin(angles), ops.cos(angles)]",
        "[ops.cos(angles), ops.sin(angles)]",
        "tests/test_positional.py::test_sinusoids_equal_the_formula_also_for_odd_widths",
        "sine and cosine have changed places",
    ),
    Break(
        "dropout-scale",
        "tfattn/layers/dropout.py",
        "scale = 2**bits / (2**bits - dropped)",
        "scale = 1.0",
        "tests/test_dropout.py::test_the_rate_is_met_and_the_expected_sum_stays",
        "what dropout leaves is not scaled up",
    ),
    Break(
        "parts-one-seed",
        "tfattn/layers/parts.py",
        'zlib.crc32(f"{seed}/{name}".encode()) >> 1',
        "seed",
        "tests/test_parts.py::test_one_seed_drops_other_features_in_each_part",
        "all parts of a model drop the same features",
    ),
    # Positions and biases.
    Break(
        "parts-shared",
        "tfattn/layers/parts.py",
        "if others and part.weights:",
        "if others and part.weights is None:",
        "tests/test_parts.py::test_a_functional_model_whose_layers_share_weights_of_a_part_is_not_saved",
        "a file is written in which one of two layers has no weights",
    ),
    Break(
        "parts-rules-on-jax",
        "tfattn/layers/parts.py",
        "        if not rules:\n",
        "        if True:\n",
        "tests/test_attention_positions.py::test_jax_gives_and_learns_the_same",
        "on JAX no functional model takes a mask or a bias object",
    ),
    Break(
        "parts-spec-of-nothing",
        "tfattn/layers/parts.py",
        "        return copy_of(layer)(*args, **kwargs)",
        "        return layer(*args, **kwargs)",
        "tests/conformance/test_symbolic.py::"
        "test_compute_output_spec_of_a_layer_that_is_not_built_is_the_eager_output",
        "a question about shapes builds the layer",
    ),
    Break(
        "positions-rotary-start",
        "tfattn/layers/positions/rotary.py",
        'at = ops.cast(ops.arange(tokens, dtype="int32") + start, "float32")',
        'at = ops.cast(ops.arange(tokens, dtype="int32"), "float32")',
        "tests/test_attention_positions.py::test_pieces_of_keys_and_single_queries_are_the_call[rotary]",
        "heads in a cache turn as the first ones",
    ),
    Break(
        "positions-rotary-half-angles",
        "tfattn/layers/positions/rotary.py",
        '+ start, "float32")  # (T,) or (B, T)',
        '+ start, "bfloat16")  # (T,) or (B, T)',
        "tests/test_attention_positions.py::test_angles_far_out_are_exact_in_every_dtype[float32]",
        "positions have the digits of half precision",
    ),
    Break(
        "positions-rotary-pairs",
        "tfattn/layers/positions/rotary.py",
        "        if not self.interleaved:\n            return tuple(ops.split",
        "        if self.interleaved:\n            return tuple(ops.split",
        "tests/test_attention_positions.py::test_attention_with_positions_is_the_formula"
        "[rotary of neighbours-dense-itself]",
        "features are paired the other way",
    ),
    Break(
        "positions-rotary-passing",
        "tfattn/layers/positions/rotary.py",
        "width = total if self.rotary_dim is None else self.rotary_dim",
        "width = total",
        "tests/test_attention_positions.py::test_attention_with_positions_is_the_formula"
        "[rotary of some features-dense-itself]",
        "all features turn where some should pass",
    ),
    Break(
        "positions-yarn-magnitude",
        "tfattn/layers/positions/rotary.py",
        "magnitude = self.scaling.magnitude",
        "magnitude = 1.0",
        "tests/test_attention_positions.py::test_attention_with_positions_is_the_formula"
        "[rotary, yarn-dense-itself]",
        "YaRN does not sharpen the scores",
    ),
    Break(
        "positions-dynamic-cache",
        "tfattn/layers/transformer/decoder_block.py",
        "if most is not None and max_length > most:",
        "if False:",
        "tests/test_attention_positions.py::test_a_cache_beyond_the_length_where_keys_turn_anew_is_refused",
        "a cache keeps keys that were turned for another length",
    ),
    Break(
        "positions-table-half",
        "tfattn/layers/positions/relative.py",
        "            autocast=False,  #",
        "            #",
        "tests/test_attention_positions.py::test_a_table_and_its_gradient_are_float32_in_half_precision",
        "a table's gradient is summed up in half precision",
    ),
    Break(
        "biases-buckets-rounded",
        "tfattn/core/biases/relative.py",
        "* exact**k >= max_distance**k",
        "* exact**k > max_distance**k",
        "tests/test_biases.py::test_bias_equals_its_definition",
        "a distance that begins a bucket falls into the one before",
    ),
    Break(
        "biases-sides",
        "tfattn/core/biases/relative.py",
        "after = [d + of_a_side if d else 0 for d in before]",
        "after = before",
        "tests/test_biases.py::test_bias_equals_its_definition",
        "keys before and after the query share their buckets",
    ),
    Break(
        "biases-flat-too-near",
        "tfattn/core/biases/relative.py",
        "return (before >= self.max_distance)",
        "return (before >= self.max_distance - 2)",
        "tests/test_biases.py::test_where_a_bias_is_flat_one_pair_is_all_of_them",
        "a block near the diagonal gets one number",
    ),
    Break(
        "biases-heads-of-a-step",
        "tfattn/core/paths/blockwise/tiling.py",
        "head_start=m % self.head_steps * self.heads",
        "head_start=0",
        "tests/test_attention_positions.py::test_attention_with_positions_is_the_formula"
        "[alibi-streamed-itself]",
        "all heads get the first ones' bias when streamed",
    ),
    Break(
        "biases-flat-gradient",
        "tfattn/core/paths/blockwise/block_bias.py",
        "return tf.cond(flat, lambda: function(one), lambda: function(grid))",
        "return function(one)",
        "tests/test_attention_positions.py::test_the_table_gets_the_gradient_of_the_formula[relative-streamed]",
        "one pair's bias stands for a block's",
    ),
    Break(
        "biases-sum-that-cannot-split",
        "tfattn/core/biases/sums.py",
        "return all(side.splits_by_head or",
        "return any(side.splits_by_head or",
        "tests/test_biases.py::test_heads_are_split_where_all_parts_of_a_sum_can_split_them",
        "a sum splits heads that one side holds together",
    ),
    Break(
        "biases-sum-reads-variables",
        "tfattn/core/biases/sums.py",
        "left = self.left.on(grid, *parameters[: self.of_left])",
        "left = self.left.on(grid, *parameters[: len(self.left.parameters())])",
        "tests/test_attention_positions.py::test_a_bias_of_the_call_is_added_to_that_of_the_positions",
        "a sum reads a variable where gradients are taken",
    ),
    # Recurrent layers and their translator.
    Break(
        "recurrent-backwards",
        "tfattn/layers/recurrent/recurrence.py",
        "(ops.flip(outputs, axis=1) if go_backwards else outputs)",
        "outputs",
        "tests/test_recurrent_encoder.py::test_encoder_equals_the_oracle_that_knows_no_padding",
        "what is read backwards stands backwards",
    ),
    Break(
        "recurrent-gate",
        "tfattn/layers/recurrent/recurrence.py",
        "update * state + (1 - update) * candidate",
        "update * candidate + (1 - update) * state",
        "tests/test_recurrent_encoder.py::"
        "test_encoder_equals_keras_own_layer_with_the_same_weights",
        "a GRU's update gate is turned around",
    ),
    Break(
        "recurrent-garbage",
        "tfattn/layers/recurrent/decoder.py",
        "memory = ops.where(seen, memory, 0.0)",
        "pass",
        "tests/test_recurrent_decoder.py::"
        "test_garbage_under_the_padding_of_the_memory_reaches_no_output_and_no_gradient",
        "NaN in the memory's padding reaches the gradients",
    ),
    Break(
        "seq2seq-state",
        "tfattn/models/seq2seq.py",
        'state = {**state, "hidden": hidden}',
        "state = {**state}",
        "tests/test_seq2seq.py::"
        "test_steps_give_the_logits_of_teacher_forcing_at_every_position[gru]",
        "a decoder forgets what it has written",
    ),
    Break(
        "seq2seq-bridge",
        "tfattn/models/seq2seq.py",
        'size, activation="tanh", dtype=self.dtype_policy, name=f"initial_state_{i}"',
        'size, dtype=self.dtype_policy, name=f"initial_state_{i}"',
        "tests/test_seq2seq.py::"
        "test_a_bidirectional_encoders_last_states_pass_through_a_tanh_map[GRUCell]",
        "a decoder's first state may be any number",
    ),
    Break(
        "quantization-copies",
        "tfattn/layers/quantization.py",
        "        if quantized_parts:\n",
        "        if quantized_parts is False:\n",
        "tests/test_quantization.py::test_one_quantised_map_alone_is_copied",
        "a copy of a quantised layer has other weights",
    ),
    Break(
        "quantization-vectors",
        "tfattn/models/output.py",
        "vectors = embedding(ops.arange(embedding.input_dim))",
        "vectors = embedding._embeddings",
        "tests/test_quantization.py::"
        "test_words_are_scored_by_the_vectors_that_they_are_looked_up_as",
        "quantised words are scored by raw integers",
    ),
    Break(
        "regression-left-out",
        "tfattn/models/kernel_regression.py",
        "masks.segments(index[None], everyone[None])",
        "masks.segments(0 * index[None] - 1, everyone[None])",
        "tests/test_kernel_regression_model.py::"
        "test_batches_and_shuffling_change_no_leave_one_out_error[7]",
        "the bandwidth is learnt from points that see themselves",
    ),
    # Kernel regression.
    Break(
        "smoothing-left-out",
        "tfattn/smoothing/tiles.py",
        "left_out[rows] - keys.start] = np.inf",
        "left_out[rows] - keys.start] = 0.0",
        "tests/smoothing/test_regression.py::test_leave_one_out_is_that_of_the_oracle",
        "a point vouches for itself",
    ),
    Break(
        "smoothing-left-out-boxes",
        "tfattn/smoothing/line.py",
        "total[0] -= channels[left_out]",
        "total[0] -= 0.0 * channels[left_out]",
        "tests/smoothing/test_regression.py::test_leaving_out_by_sums_over_boxes_is_leaving_out_by_pairs",
        "among many points on a line a point vouches for itself",
    ),
    Break(
        "smoothing-gradient",
        "tfattn/smoothing/left_out.py",
        "return squared - mixed - mixed.T",
        "return squared - mixed",
        "tests/smoothing/test_bandwidth.py::test_two_bandwidths_are_within_a_thousandth_of_the_best[0]",
        "the search ends where a wrong gradient is 0",
    ),
    Break(
        "smoothing-valleys",
        "tfattn/smoothing/bandwidth.py",
        "_valleys(errors)[:VALLEYS]",
        "_valleys(errors)[:0]",
        "tests/smoothing/test_bandwidth.py::test_the_bandwidth_is_within_a_thousandth_of_the_best[3]",
        "a grid's best bandwidth passes for the best",
    ),
    Break(
        "smoothing-units",
        "tfattn/smoothing/frame.py",
        "result[self.continuous] = self.spread / np.diag(metric.map)",
        "result[self.continuous] = 1.0 / np.diag(metric.map)",
        "tests/smoothing/test_regression.py::test_units_and_offsets_of_two_columns_and_of_lines_change_no_fit",
        "the bandwidth that is told has another unit than x",
    ),
    Break(
        "smoothing-units-of-y",
        "tfattn/smoothing/regression.py",
        ".min(axis=0)).max()) or 1.0",
        ".min(axis=0)).max()) * 0.0 or 1.0",
        "tests/smoothing/test_regression.py::test_units_and_offsets_of_two_columns_and_of_lines_change_no_fit",
        "the unit of y decides the bandwidth",
    ),
    Break(
        "smoothing-far",
        "tfattn/smoothing/tiles.py",
        "weight[far] -= greatest[far, None]",
        "weight[far] -= 0.0",
        "tests/smoothing/test_regression.py::test_far_queries_get_the_nearest_value_and_never_a_silent_0",
        "far from the data a Gaussian answers the plain mean",
    ),
    Break(
        "smoothing-empty",
        "tfattn/smoothing/tiles.py",
        "        if nearest:\n            weight[empty]",
        "        if False:\n            weight[empty]",
        "tests/smoothing/test_regression.py::test_a_query_without_neighbours_gets_what_was_chosen",
        "a query without neighbours gets a silent number",
    ),
    Break(
        "smoothing-windows",
        "tfattn/smoothing/tiles.py",
        "reach = reach * (1.0 + 1e-9)",
        "reach = reach * 0.9",
        "tests/smoothing/test_regression.py::test_predictions_on_a_line_are_those_of_the_oracle",
        "keys at the edge of the support are skipped",
    ),
    Break(
        "smoothing-near",
        "tfattn/smoothing/near.py",
        "good = total[:, 0] > rest",
        "good = total[:, 0] > 0.0",
        "tests/smoothing/test_regression.py::test_means_of_near_keys_are_those_of_all_keys",
        "keys that are not near are forgotten where they count",
    ),
    Break(
        "smoothing-squares",
        "tfattn/smoothing/tiles.py",
        "[-2.0 * key,",
        "[-1.0 * key,",
        "tests/smoothing/test_regression.py::test_predictions_in_many_columns_are_those_of_the_oracle",
        "distances in several columns are wrong",
    ),
    Break(
        "smoothing-boxes-far",
        "tfattn/smoothing/line.py",
        "np.exp(-0.5 * TRUSTED**2) * weight.max()",
        "0.0 * weight.max()",
        "tests/smoothing/test_regression.py::test_sums_over_boxes_are_those_over_pairs",
        "sums that have lost their digits are trusted",
    ),
    Break(
        "smoothing-boxes-weights",
        "tfattn/smoothing/line.py",
        "np.exp(-0.5 * TRUSTED**2) * weight.max()",
        "np.exp(-0.5 * TRUSTED**2) * weight.min()",
        "tests/smoothing/test_regression.py::test_sums_over_boxes_see_heavy_keys_beside_tiny_ones",
        "beside keys of tiny weights heavy ones are lost",
    ),
    Break(
        "smoothing-weights",
        "tfattn/smoothing/points.py",
        "return float(ratio - np.log(least))",
        "return float(-np.log(least))",
        "tests/smoothing/test_regression.py::test_a_near_key_of_a_tiny_weight_hides_no_heavy_one",
        "a key of a tiny weight hides all others",
    ),
    Break(
        "smoothing-reach",
        "tfattn/smoothing/kernels.py",
        "return np.full(np.shape(nearest), np.inf)",
        "return nearest + fall",
        "tests/smoothing/test_regression.py::"
        "test_a_kernel_of_ones_own_is_seen_as_far_as_it_reaches[cauchy-1-0]",
        "the tails of a user's kernel are cut off",
    ),
    Break(
        "smoothing-line-digits",
        "tfattn/smoothing/local.py",
        "LOST * np.square(centre)",
        "0.0 * np.square(centre)",
        "tests/smoothing/test_regression.py::"
        "test_a_local_line_sees_slopes_in_clusters_that_are_far_apart",
        "a local line is flat, or wild, where the range is wide",
    ),
    Break(
        "smoothing-far-gradient",
        "tfattn/smoothing/left_out.py",
        "if far:  #",
        "if False:  #",
        "tests/smoothing/test_bandwidth.py::"
        "test_one_point_that_is_far_away_spoils_no_search[plane-each-1000000000.0]",
        "a point far away turns the gradient into noise",
    ),
    Break(
        "smoothing-map-and-categories",
        "tfattn/smoothing/frame.py",
        "return (matrix, metric.widths) if len(self.categorical) else matrix",
        "return matrix",
        "tests/smoothing/test_bandwidth.py::test_what_a_map_and_categories_use_is_given_and_taken",
        "the bandwidth that is told is not the one in use",
    ),
    Break(
        "smoothing-categories",
        "tfattn/smoothing/points.py",
        "width / np.maximum(counts - 1, 1)",
        "width / np.maximum(counts, 1)",
        "tests/smoothing/test_regression.py::test_categories_weigh_as_aitchison_and_aitken_say",
        "the weights of categories do not sum to 1",
    ),
    Break(
        "smoothing-places",
        "tfattn/smoothing/regression.py",
        'if self.leave_out == "place":',
        'if self.leave_out == "nowhere":',
        "tests/smoothing/test_regression.py::test_repeated_rows_do_not_vouch_for_one_another_where_places_are_left_out",
        "copies of a row predict one another",
    ),
    Break(
        "smoothing-line",
        "tfattn/smoothing/local.py",
        "value = mean + np.einsum",
        "value = mean - np.einsum",
        "tests/smoothing/test_regression.py::test_predictions_on_a_line_are_those_of_the_oracle",
        "a local line leans the wrong way",
    ),
    Break(
        "smoothing-derivative",
        "tfattn/smoothing/regression.py",
        "return 2.0 * (query[:, :, None]",
        "return 1.0 * (query[:, :, None]",
        "tests/smoothing/test_regression.py::test_derivatives_are_those_of_finite_differences",
        "a derivative is half of itself",
    ),
    Break(
        "smoothing-band",
        "tfattn/smoothing/regression.py",
        "0.5 + side * level / 2",
        "0.5 + side * level / 4",
        "tests/smoothing/test_regression.py::test_a_band_holds_the_curve_about_as_often_as_it_says[asymptotic]",
        "a band of 90% holds the curve half as often",
    ),
    Break(
        "smoothing-order",
        "tfattn/smoothing/regression.py",
        "return queries.take(order), np.argsort(order)",
        "return queries.take(order), order",
        "tests/smoothing/test_regression.py::test_sums_over_boxes_are_those_over_pairs",
        "predictions come in another order",
    ),
    Break(
        "smoothing-threads",
        "tfattn/smoothing/tiles.py",
        "yield waiting.popleft().result()\n        while",
        "yield waiting.pop().result()\n        while",
        "tests/smoothing/test_regression.py::test_tiles_in_threads_come_in_order_and_an_error_comes_out_and_leaves_no_thread",
        "tiles come in the order in which threads end",
    ),
    Break(
        "smoothing-blas",
        "tfattn/smoothing/threads.py",
        "            if _inside == 0:",
        "            if _limit is not None:",
        "tests/smoothing/test_regression.py::"
        "test_blas_has_one_thread_in_a_call_and_as_many_as_before_after_calls_that_overlap",
        "a call that ends gives BLAS its threads back while another runs",
    ),
    Break(
        "smoothing-finite",
        "tfattn/smoothing/arrays.py",
        "if not finite.all():",
        "if False:",
        "tests/smoothing/test_regression.py::test_nonsense_is_refused_in_the_one_form",
        "NaN trains to NaN in silence",
    ),
    Break(
        "sklearn-places",
        "tfattn/sklearn.py",
        '("point" if columns else "place")',
        '"point"',
        "tests/smoothing/test_sklearn.py::test_weights_count_as_rows",
        "a weight of 2 is not two rows",
    ),
    Break(
        "sklearn-missing",
        "tfattn/sklearn.py",
        "if not isinstance(value, str) and not (is_number and np.isfinite(value)):",
        "if False:",
        "tests/smoothing/test_sklearn.py::"
        "test_a_category_that_is_missing_is_named_with_its_row_and_column",
        "a category that is missing is one more category",
    ),
    Break(
        "regression-unit",
        "tfattn/models/kernel_regression.py",
        'query = ops.cast(inputs["away"], keys.dtype) / self.unit',
        'query = ops.cast(inputs["away"], keys.dtype)',
        "tests/test_kernel_regression_model.py::"
        "test_no_unit_of_x_is_too_small_or_too_great_for_the_layer[None-1e-13]",
        "the layer knows bandwidths near 1 alone",
    ),
    Break(
        "surface-scale",
        "tfattn/plot/surface.py",
        "lowest, highest = float(finite.min())",
        "lowest, highest = 0.0 * float(finite.min())",
        "tests/test_plot.py::test_a_surface_shows_heights_at_their_places_contours_and_points",
        "low heights have one colour",
    ),
    # Training.
    Break(
        "loss-mean-over-padding",
        "tfattn/training/losses.py",
        "sum_weights = ops.sum(weights)",
        'sum_weights = ops.cast(ops.size(weights), "float32")',
        "tests/test_training.py::test_the_loss_is_the_mean_over_real_tokens",
        "padding lowers the mean loss",
    ),
    Break(
        "loss-smoothing",
        "tfattn/training/losses.py",
        "losses = losses - smoothing * ops.mean(logits, axis=-1)",
        "losses = losses - smoothing * ops.max(logits, axis=-1)",
        "tests/test_training.py::test_the_loss_is_the_mean_over_real_tokens",
        "label smoothing rewards the best word again",
    ),
    Break(
        "loss-gradient",
        "tfattn/training/losses.py",
        "grad_target = (p_target - (1.0 - smoothing) - uniform) * upstream",
        "grad_target = (p_target - (1.0 - smoothing)) * upstream",
        "tests/test_training.py::test_the_gradient_is_softmax_minus_the_smoothed_target",
        "the target's gradient misses its share of the smoothing",
    ),
    Break(
        "loss-without-logits",
        "tfattn/training/streamed.py",
        "exponentials = tf.exp(logits - row_max)",
        "exponentials = tf.exp(logits) + 0.0",
        "tests/test_training_streamed.py::"
        "test_logits_may_be_shifted_to_where_exponentials_overflow_or_vanish",
        "large logits overflow where the loss goes block by block",
    ),
    Break(
        "metric-rows",
        "tfattn/training/metrics.py",
        "ops.reshape(right, (-1,)), ops.reshape(weights, (-1,))",
        "right, weights",
        "tests/test_training_metrics.py::"
        "test_accuracy_is_the_share_of_real_tokens_over_all_updates",
        "a token of a long row counts less",
    ),
    Break(
        "simcut-whole-half",
        "tfattn/training/twins.py",
        "(ops.arange(rows) < rows // 2)[:, None]",
        "(ops.arange(rows) >= rows // 2)[:, None]",
        "tests/test_simcut.py::test_it_is_the_formula",
        "SimCut takes the predictions from cut inputs for those of whole ones",
    ),
    Break(
        "simcut-streamed-q",
        "tfattn/training/streamed_divergence.py",
        "by_p, by_q = p * (ratio - mean), q - p",
        "by_p, by_q = p * (ratio - mean), 0.0 * q",
        "tests/test_simcut.py::test_without_logits_it_is_the_same[twins]",
        "without logits the prediction from cut inputs learns nothing",
    ),
    Break(
        "simcut-marks",
        "tfattn/data/simcut.py",
        "marks = (words.padding_id, words.begin_id, words.end_id)",
        "marks = (words.padding_id, words.begin_id)",
        "tests/test_simcut.py::test_the_second_half_has_cut_tokens_at_their_rate_and_no_cut_mark",
        "SimCut cuts the end of a source",
    ),
    Break(
        "unspaced-sentence",
        "tfattn/data/vocabulary.py",
        "if tokenizers.is_whole_sentence(unknown, known):",
        "if False:",
        "tests/test_data_tokenizers.py::"
        "test_a_sentence_of_one_unknown_word_is_refused_and_an_unknown_word_is_not",
        "a Chinese sentence becomes one unknown word without a sound",
    ),
    Break(
        "translator-model-file",
        "tfattn/translator/folder.py",
        'if self.read_record().get("model_file") not in (None, _file_fingerprint(self.model)):',
        "if False:",
        "tests/translator/test_exporting.py::"
        "test_a_folder_that_was_tampered_with_is_one_sentence[changed_byte]",
        "a model file that was changed after its training is taken",
    ),
    Break(
        "rdrop-half",
        "tfattn/training/rdrop.py",
        "self.weight / 2 * _divergence",
        "self.weight * _divergence",
        "tests/test_rdrop.py::test_it_is_the_formula",
        "R-Drop weighs twice what its argument says",
    ),
    Break(
        "rdrop-ruled-out",
        "tfattn/training/rdrop.py",
        "ratio = ops.where(p == q, 0.0, log_p - log_q)",
        "ratio = log_p - log_q",
        "tests/test_rdrop.py::test_a_word_that_both_rule_out_is_no_difference",
        "a word that both twins rule out makes the loss NaN",
    ),
    Break(
        "bleu-last-epoch",
        "tfattn/training/bleu.py",
        'last = epoch + 1 == self.params.get("epochs")',
        "last = False",
        "tests/test_training_bleu.py::"
        "test_between_two_translations_the_last_value_stands_and_the_last_epoch_is_judged",
        "the last epoch is not translated",
    ),
    Break(
        "schedule-first-step",
        "tfattn/training/schedules.py",
        'step = ops.cast(step, "float32") + 1.0',
        'step = ops.cast(step, "float32")',
        "tests/test_schedules.py::test_the_schedule_is_the_papers_formula",
        "the first update has a rate of 0",
    ),
    Break(
        "schedule-below-zero",
        "tfattn/training/schedules.py",
        "ops.clip(remaining, 0.0, 1.0)",
        "ops.minimum(remaining, 1.0)",
        "tests/test_schedules.py::test_a_cooldown_is_the_schedule_and_then_a_straight_way_to_zero",
        "after the way down the rate is negative",
    ),
    Break(
        "averaging-error",
        "tfattn/training/averaging.py",
        "        finally:\n            self._swap_in_weights()",
        "        finally:\n            pass",
        "tests/test_training_averaging.py::"
        "test_an_error_in_a_callback_leaves_the_weights_of_training_in_the_model",
        "the average stays in the model, and training goes on from it",
    ),
    Break(
        "backup-seeds",
        "tfattn/training/backup.py",
        '{"model": self.model.variables',
        '{"model": self.model.weights',
        "tests/test_resume.py::test_weights_optimizer_and_seeds_go_on_bit_for_bit[adam]",
        "a run that goes on drops other features",
    ),
    Break(
        "backup-history",
        "tfattn/training/backup.py",
        "self.model.history.epoch[:] = range(epoch)",
        "pass",
        "tests/test_resume.py::test_the_history_of_a_resumed_run_is_that_of_all_its_lives",
        "the history of a run that goes on begins in the middle",
    ),
    # Several processes and devices.
    Break(
        "scale-rows",
        "tfattn/data/shards.py",
        "np.concatenate(padded)[shard * size : (shard + 1) * size]",
        "np.concatenate(padded)[shard::num_shards]",
        "tests/test_data_shards.py::"
        "test_the_shards_side_by_side_are_the_batch_and_rows_of_zeros[2-1-4-PyDataset]",
        "a process has rows of another's place in the batch",
    ),
    Break(
        "scale-token-loss",
        "tfattn/training/metrics.py",
        "super().update_state(mean, weights)",
        "super().update_state(mean)",
        "tests/test_training_metrics.py::test_the_loss_of_tokens_is_their_mean_over_all_updates",
        "a batch of few tokens counts as much as one of many",
    ),
    Break(
        "scale-gates",
        "tfattn/training/layouts.py",
        "(query|key|value|gate)",
        "(query|key|value)",
        "tests/test_training_layouts.py::"
        "test_gates_of_heads_and_of_networks_are_split_as_what_they_multiply",
        "the gates of heads are whole on each device",
    ),
    Break(
        "scale-paths-whole",
        "tfattn/training/layouts.py",
        'layout[f"^{path}$"]',
        "layout[path]",
        "tests/test_training_layouts.py::"
        "test_a_weight_has_its_layout_whether_patterns_are_searched_for_or_match_whole[search-True]",
        "Keras 3.12 finds two layouts for the output of heads",
    ),
    Break(
        "scale-paper",
        "tfattn/training/step_cost.py",
        "4 * n * width**2 + 2 * n * source_length",
        "4 * n * width**2 + n * source_length",
        "tests/test_step_cost.py::test_it_counts_the_products_that_jax_traces",
        "the paper forgets the sum of the values",
    ),
    Break(
        "scale-once",
        "tfattn/training/first_process.py",
        "self._copy.set_weights(arrays)",
        "pass",
        "tests/distributed/test_updates.py::"
        "test_the_callbacks_of_the_first_process_see_the_average_and_log_for_all[dense]",
        "BLEU is that of the first weights",
    ),
    Break(
        "scale-seeds",
        "tfattn/training/processes.py",
        "random.setstate(python_state)",
        "pass",
        "tests/distributed/test_updates.py::"
        "test_a_backup_holds_the_whole_of_what_processes_share_and_gives_each_its_part",
        "what the first process does alone makes it draw other seeds than the others",
    ),
    # Decoding.
    Break(
        "decoding-limit",
        "tfattn/decoding/loop.py",
        "ops.logical_or(token == settings.end_id, position + 1 >= limits)",
        "token == settings.end_id",
        "tests/test_decoding.py::test_each_row_may_have_its_own_max_length",
        "a row writes on past its own limit",
    ),
    Break(
        "decoding-past",
        "tfattn/decoding/rows.py",
        "_STRIDE = 8",
        "_STRIDE = 64",
        "tests/test_decoding_past.py::"
        "test_a_step_gets_room_for_a_few_positions_more_than_are_written",
        "each step works on positions that nobody has written",
    ),
    Break(
        "beams-length",
        "tfattn/decoding/candidates.py",
        "ops.where(found.ended, 0.0, 1.0)",
        "1.0",
        "tests/test_decoding_beams.py::test_few_beams_find_what_the_search_in_python_finds",
        "a hypothesis grows after its end",
    ),
    Break(
        "beams-other-sentence",
        "tfattn/decoding/candidates.py",
        "chosen + sentences * count",
        "chosen",
        "tests/test_decoding_beams.py::test_few_beams_find_what_the_search_in_python_finds",
        "every sentence goes on with the beams of the first",
    ),
    Break(
        "rules-renormalised",
        "tfattn/decoding/loop.py",
        "log_sum = ops.logsumexp(given, axis=-1, keepdims=True)",
        "log_sum = ops.logsumexp(logits, axis=-1, keepdims=True)",
        "tests/test_decoding_rules.py::"
        "test_what_a_rule_forbids_makes_nothing_else_likelier_in_beams",
        "a beam is rewarded for a token that a rule forbids",
    ),
    Break(
        "rules-rows",
        "tfattn/decoding/loop.py",
        "lambda tensor: take_rows(tensor, rows), found.ruled",
        "lambda tensor: take_rows(tensor, None if width > 1 else rows), found.ruled",
        "tests/test_decoding_rules.py::test_a_rule_of_ones_own_has_a_state_that_follows_the_beams",
        "a rule's state stays behind when beams change places",
    ),
    Break(
        "rules-stop",
        "tfattn/decoding/candidates.py",
        "if not all(rule.lowers_only for rule in self.rules):",
        "if False:",
        "tests/test_decoding_rules.py::test_a_rule_of_ones_own_has_a_state_that_follows_the_beams",
        "a search stops for what looks out of reach, though a rule may raise scores",
    ),
    Break(
        "rules-stuck",
        "tfattn/decoding/loop.py",
        "none_left = ops.logical_and(none_left, ops.logical_not(found.ended))",
        "none_left = ops.zeros_like(none_left)",
        "tests/test_decoding_rules_refused.py::"
        "test_rules_that_leave_nothing_to_write_are_refused_in_one_sentence",
        "a row that may write nothing writes padding, and says nothing",
    ),
    Break(
        "rules-negative-penalty",
        "tfattn/decoding/rules/repetition.py",
        "logits * self.penalty)",
        "logits / self.penalty)",
        "tests/test_decoding_rules.py::test_greedy_search_writes_what_the_oracle_writes",
        "a repeated token with a negative score gets likelier",
    ),
    Break(
        "rules-required-room",
        "tfattn/decoding/rules/required.py",
        "position - 2)[:, None]",
        "position - 1)[:, None]",
        "tests/test_decoding_required.py::test_every_result_has_all_required_tokens_however_unlikely",
        "what is begun is broken off, and then there is no room for it",
    ),
    Break(
        "rules-required-shared-token",
        "tfattn/decoding/rules/required.py",
        'ops.logical_and(candidates == token, gains > -float("inf"))',
        "candidates == token",
        "tests/test_decoding_required.py::"
        "test_a_first_token_that_two_phrases_share_is_a_candidate_for_the_second_too",
        "the second of two phrases that begin alike waits until the last moment",
    ),
    Break(
        "rules-prompt",
        "tfattn/decoding/loop.py",
        "if prompted is not None:",
        "if False:",
        "tests/test_language_model.py::test_rules_see_a_prompt_and_leave_it_as_it_is",
        "a prompt with a bigram twice is refused",
    ),
    Break(
        "sample-seed-of-batches",
        "tfattn/decoding/translation.py",
        "return functools.partial(search, seed=generator)",
        "return search",
        "tests/test_decoding_translate.py::test_a_seed_is_that_of_all_batches_and_not_of_each_anew",
        "sentences of several batches are drawn alike",
    ),
    Break(
        "rules-order-of-sentences",
        "tfattn/decoding/translation.py",
        "rule.take(places)",
        "rule.take(range(len(places)))",
        "tests/test_decoding_rules_compiled.py::"
        "test_a_translation_has_the_rows_of_its_rules_in_the_order_of_the_sentences",
        "a sentence gets the prefix of another",
    ),
    Break(
        "diverse-used",
        "tfattn/decoding/candidates.py",
        "used = used + counted(written, new, size)",
        "used = counted(written, new, size)",
        "tests/test_decoding_beam_rules.py::test_groups_find_what_groups_in_python_find",
        "a group differs from the one before it alone",
    ),
    Break(
        "coverage-open-beams",
        "tfattn/decoding/candidates.py",
        "scores + ops.where(ends, beams.at_end[:, None], 0.0)",
        "scores + beams.at_end[:, None]",
        "tests/test_decoding_beam_rules.py::"
        "test_open_beams_are_compared_without_what_they_have_yet_to_look_at",
        "open beams are ranked by what they have yet to look at",
    ),
    Break(
        "stream-certain",
        "tfattn/decoding/streaming.py",
        "if len(set(tokens)) > 1:",
        "if False:",
        "tests/test_decoding_stream.py::test_the_tokens_of_a_stream_are_those_of_the_search",
        "a stream gives the best beam's words before they are certain",
    ),
    Break(
        "trace-died",
        "tfattn/decoding/trace.py",
        "ops.logical_and(before, ops.logical_not(of_parent))",
        "ops.logical_not(of_parent)",
        "tests/test_decoding_beam_rules.py::test_a_trace_tells_how_the_results_came_about",
        "beams die that there were not",
    ),
    Break(
        "sampling-top-p",
        "tfattn/decoding/sampling.py",
        "better = ops.cumsum(p, axis=-1) - p",
        "better = ops.cumsum(p, axis=-1)",
        "tests/test_decoding_sampling.py::"
        "test_tokens_are_drawn_as_often_as_their_probabilities_say",
        "top-p leaves out the token that reaches it",
    ),
    Break(
        "sampling-temperature",
        "tfattn/decoding/sampling.py",
        "keepdims=True)) / self.temperature)",
        "keepdims=True)) * self.temperature)",
        "tests/test_decoding_sampling.py::"
        "test_tokens_are_drawn_as_often_as_their_probabilities_say",
        "a low temperature draws at random",
    ),
    Break(
        "translation-reach",
        "tfattn/decoding/translation.py",
        "np.minimum(most, reach)",
        "most",
        "tests/test_decoding_translate.py::"
        "test_a_sentence_gets_room_by_its_own_length_and_no_more_than_the_model_has",
        "a translation is longer than the model's positions reach",
    ),
    # Data.
    Break(
        "vocabulary-forged",
        "tfattn/data/vocabulary.py",
        "if not whole or word in _SPECIAL_WORDS:",
        "if not whole:",
        "tests/test_data_vocabulary.py::test_words_must_be_ordinary",
        'a vocabulary has two words that read "<eos>"',
    ),
    Break(
        "vocabulary-end",
        "tfattn/data/vocabulary.py",
        "if index == self.end_id:\n                break",
        "if index == self.end_id:\n                continue",
        "tests/test_data_vocabulary.py::test_decode_stops_at_end_and_drops_padding_and_begin",
        "what stands after the end is read",
    ),
    Break(
        "epochs-lengths",
        "tfattn/data/epochs.py",
        "np.lexsort((lengths[0] - lengths[1], -longer))",
        "np.lexsort((-longer, lengths[0] - lengths[1]))",
        "tests/test_data_batches.py::test_pairs_of_a_token_batch_have_similar_lengths",
        "short and long sentences share a batch",
    ),
    Break(
        "epochs-repeated",
        "tfattn/data/epochs.py",
        "assign_add(1, read_value=True) - 1",
        "assign_add(0, read_value=True)",
        "tests/test_data_epochs.py::test_a_counter_starts_the_epochs_where_it_is_told",
        "every epoch has the order of the first",
    ),
    # Figures.
    Break(
        "heatmaps-scale",
        "tfattn/plot/cells.py",
        ".min(), 0.0)",
        ".min(), 1.0)",
        "tests/test_plot.py::test_heatmaps_share_a_colour_scale_from_0_to_the_largest_weight",
        "the least weight looks like none",
    ),
    Break(
        "heatmaps-upwards",
        "tfattn/plot/cells.py",
        "    if row_values is None:\n",
        "    if row_values is not None:\n",
        "tests/test_plot_road.py::test_rows_with_values_go_upwards_and_rows_without_go_down",
        "the diagonal of a kernel regression falls",
    ),
    Break(
        "flow-sides",
        "tfattn/plot/flow.py",
        "(1.0, right[column])",
        "(1.0, left[row])",
        "tests/test_plot_road.py::test_a_line_joins_a_word_to_what_it_looks_at",
        "each word looks straight ahead",
    ),
    Break(
        "fonts-of-words",
        "tfattn/plot/fonts.py",
        "words.set_fontfamily([*words.get_fontfamily(), *families])",
        "words.set_fontfamily(words.get_fontfamily())",
        "tests/test_plot_fonts.py::test_a_word_gets_a_font_that_has_its_characters_after_its_own",
        "boxes in place of Chinese",
    ),
    Break(
        "regression-figure",
        "tfattn/plot/regression.py",
        'order = np.argsort(queries, kind="stable")',
        "order = np.arange(len(queries))",
        "tests/test_plot.py::"
        "test_a_fit_is_drawn_from_left_to_right_whatever_the_order_of_the_queries",
        "a curve runs to and fro",
    ),
    Break(
        "viewer-escape",
        "tfattn/plot/page.py",
        'for sign in "<>&":',
        'for sign in "&":',
        "tests/test_viewer.py::test_a_word_ends_no_element_of_the_page",
        "a sentence runs as a script",
    ),
    Break(
        "viewer-padding",
        "tfattn/plot/viewer.py",
        "matrix[:, : len(words[queries]), : len(words[keys])]",
        "matrix[:, : len(words[queries])]",
        "tests/test_viewer.py::test_weights_of_padding_are_left_out",
        "weights of padding move into other rows",
    ),
    # The blockwise path.
    Break(
        "blockwise-row-max-not-rescaled",
        "tfattn/core/paths/blockwise/online_softmax.py",
        "pooled = pooled * rescale + tf",
        "pooled = pooled + tf",
        "tests/test_blockwise_online_softmax.py::"
        "test_blocks_in_any_split_pool_as_the_oracle_does[[3, 6, 9]]",
        "row_max not rescaled",
    ),
    Break(
        "blockwise-row-sum-not-rescaled",
        "tfattn/core/paths/blockwise/online_softmax.py",
        "row_sum * rescale + _row",
        "row_sum + _row",
        "tests/test_blockwise_online_softmax.py::"
        "test_a_maximum_that_rises_and_one_that_comes_first[rising]",
        "row_sum not rescaled",
    ),
    Break(
        "blockwise-start-at-inf",
        "tfattn/core/paths/blockwise/online_softmax.py",
        "zero + zero.dtype.min, zero",
        "zero - float('inf'), zero",
        "tests/test_blockwise_online_softmax.py::"
        "test_hidden_keys_weigh_exactly_nothing_whatever_block_they_are_in",
        "start at -inf",
    ),
    Break(
        "blockwise-values-not-divided-before",
        "tfattn/core/paths/blockwise/online_softmax.py",
        "return values / tf.cast(tf.maximum(1, self.num_keys), values.dtype)",
        "return values",
        "tests/test_blockwise_online_softmax.py::"
        "test_values_as_large_as_a_float_can_be_pool_to_their_mean[-3.4e+38]",
        "values not divided before",
    ),
    Break(
        "blockwise-empty-row-s-maximum-stays",
        "tfattn/core/paths/blockwise/online_softmax.py",
        "row_max = tf.where(nothing, tf.constant(_BEYOND_ANY_SCORE, row_max.dtype), row_max)",
        "",
        "tests/test_blockwise_online_softmax.py::"
        "test_a_row_with_nothing_gives_zero_and_its_weights_come_back_as_zero[three]",
        "empty row's maximum stays",
    ),
    Break(
        "blockwise-a-block-skipped",
        "tfattn/core/paths/blockwise/visible_keys.py",
        "return cls(low // columns, ceil(high, columns)",
        "return cls(low // columns, high // columns",
        "tests/test_blockwise_visible_keys.py::"
        "test_what_any_mask_skips_is_hidden_and_what_it_calls_full_is_visible[block0-ca"
        "usal]",
        "a block skipped",
    ),
    Break(
        "blockwise-nothing-skipped",
        "tfattn/core/paths/blockwise/visible_keys.py",
        "return cls(low // columns, ceil(high, columns)",
        "return cls(0, tiling.key_blocks",
        "tests/test_blockwise_tiling.py::test_blocks_that_the_mask_rules_out_are_not_computed",
        "nothing skipped",
    ),
    Break(
        "blockwise-full-block-off-by-one",
        "tfattn/core/paths/blockwise/visible_keys.py",
        "((j + 1) * self.columns <= high)",
        "(j * self.columns <= high)",
        "tests/test_blockwise_visible_keys.py::"
        "test_what_any_mask_skips_is_hidden_and_what_it_calls_full_is_visible[block0-ca"
        "usal]",
        "full block off by one",
    ),
    Break(
        "blockwise-dropout-number-changed-on-the-way-back",
        "tfattn/core/paths/blockwise/passes.py",
        "                        self._number(m, i, j), tf.shape",
        "                        self._number(m, j, i), tf.shape",
        "tests/test_blockwise_dropout.py::test_dropout_is_the_same_forward_and_backward[eager]",
        "dropout number changed on the way back",
    ),
    Break(
        "blockwise-all-blocks-share-a-number",
        "tfattn/core/paths/blockwise/passes.py",
        "return (m * self.tiling.query_blocks + i) * self.tiling.key_blocks + j",
        "return m * self.tiling.query_blocks + i",
        "tests/test_blockwise_dropout.py::test_no_two_blocks_share_a_dropout_pattern[1-block0]",
        "all blocks share a number",
    ),
    Break(
        "blockwise-guard-removed",
        "tfattn/core/paths/blockwise/differentiation.py",
        "    if call.mask is None:\n        return query, key, value\n",
        "    return query, key, value\n",
        "tests/test_blockwise_hidden.py::"
        "test_a_query_that_may_see_a_broken_key_becomes_nan_and_no_other_does",
        "guard removed",
    ),
    Break(
        "blockwise-gradients-of-what-was-replaced-stay",
        "tfattn/core/paths/blockwise/differentiation.py",
        "tf.where(poisoned, zero, grad_query)",
        "grad_query",
        "tests/test_blockwise_hidden.py::"
        "test_a_broken_token_and_those_who_may_see_it_have_gradients_of_zero",
        "gradients of what was replaced stay",
    ),
    Break(
        "blockwise-guard-in-the-wrong-row-of-the-batch",
        "tfattn/core/paths/blockwise/differentiation.py",
        "grid = tiling.query_grid(n // blocks * tiling.head_steps, n % blocks)",
        "grid = tiling.query_grid(0, n % blocks)",
        "tests/test_blockwise_side_by_side.py::"
        "test_what_is_broken_reaches_those_who_see_it_side_by_side[(2, 2, 521, 517)]",
        "guard in the wrong row of the batch",
    ),
    Break(
        "blockwise-rule-1-left-out",
        "tfattn/core/attend.py",
        "    if seen is not None:\n",
        "    if False:\n",
        "tests/test_blockwise_hidden.py::"
        "test_what_lies_under_the_mask_reaches_nothing[scaled dot-3e+38]",
        "rule 1 left out",
    ),
    Break(
        "blockwise-guard-the-query-stays",
        "tfattn/core/guard.py",
        'ops.where(poisoned, float("nan"), query)',
        "query",
        "tests/test_guard.py::"
        "test_a_broken_token_becomes_zeros_and_each_query_that_may_see_it_nan[key-nan-t"
        "hree axes]",
        "guard: the query stays",
    ),
    Break(
        "blockwise-guard-any-head",
        "tfattn/core/guard.py",
        "broken = ops.any(broken, axis=1, keepdims=True)",
        "broken = ops.all(broken, axis=1, keepdims=True)",
        "tests/test_guard.py::"
        "test_a_token_that_is_broken_in_one_head_alone_poisons_all_heads_and_keeps_the_"
        "others_numbers",
        "guard: any head",
    ),
    Break(
        "blockwise-rule-1-on-the-heads",
        "tfattn/core/guard.py",
        "(1, 3) if len(tokens.shape) == 4 else -1",
        "-1",
        "tests/test_guard.py::"
        "test_a_token_that_no_query_may_see_becomes_zeros_whatever_it_holds[nan-four ax"
        "es]",
        "rule 1 on the heads",
    ),
    Break(
        "blockwise-bias-gradient-block-index-wrong",
        "tfattn/core/paths/blockwise/block_bias.py",
        "place = (chunk * rows + i) * columns + j",
        "place = (chunk * rows + i) * rows + j",
        "tests/test_blockwise.py::test_other_dtypes_with_a_bias[square-float16-0.004]",
        "bias gradient block index wrong",
    ),
    Break(
        "blockwise-delta-left-out",
        "tfattn/core/paths/blockwise/differentiation.py",
        "delta = tf.reduce_sum(grad_output * output, -1, keepdims=True)",
        "delta = 0 * tf.reduce_sum(grad_output * output, -1, keepdims=True)",
        "tests/test_blockwise.py::test_three_axes",
        "delta left out",
    ),
    Break(
        "merging-parts-that-see-nothing",
        "tfattn/core/merging.py",
        "some = softmax.not_hidden(parts)",
        "some = None",
        "tests/test_merging.py::"
        "test_a_query_that_no_shard_lets_see_has_zero_minus_infinity_and_gradients_of_zero",
        "parts of −inf make NaN",
    ),
    Break(
        "merging-parts-count-the-same",
        "tfattn/core/merging.py",
        "weights = softmax.normalise(parts, some)",
        "weights = softmax.normalise(0 * ops.where(some, parts, 0.0), some)",
        "tests/test_merging.py::"
        "test_four_shards_merge_to_the_oracle_and_to_the_gradients_of_one_call[some-dense]",
        "each part counts the same",
    ),
    Break(
        "normalizers-sparsemax-hidden-keys-within-reach",
        "tfattn/core/normalizers.py",
        "scores = ops.where(visible, scores, -2.0)",
        "scores = ops.where(visible, scores, -0.5)",
        "tests/test_normalizers.py::test_gradients_equal_finite_differences[sparsemax]",
        "hidden keys get a weight of sparsemax",
    ),
    Break(
        "normalizers-sparsemax-empty-rows",
        "tfattn/core/normalizers.py",
        "weights = weights * ops.cast(ops.any(visible, axis=-1, keepdims=True), weights.dtype)",
        "pass",
        "tests/test_normalizers.py::test_what_is_hidden_reaches_neither_weights_nor_gradient"
        "[nan-sparsemax]",
        "a row without keys has weights of sparsemax",
    ),
    Break(
        "normalizers-minus-infinity-is-seen",
        "tfattn/core/normalizers.py",
        "softmax.bounded(scores), softmax.not_hidden(scores, visible), dtype",
        "scores, softmax.not_hidden(ops.zeros_like(scores), visible), dtype",
        "tests/test_normalizers.py::"
        "test_a_score_of_minus_infinity_is_hidden_a_whole_row_of_them_too",
        "a row of −inf has weights",
    ),
    Break(
        "normalizers-no-sink-is-nan",
        "tfattn/core/normalizers.py",
        "return ops.maximum(logs, softmax.LOWEST)",
        "return logs",
        "tests/test_normalizers.py::"
        "test_a_sink_of_minus_infinity_is_none_also_for_a_row_of_nothing",
        "nothing and no sink make NaN",
    ),
    Break(
        "normalizers-top-k-drops-ties",
        "tfattn/core/normalizers.py",
        "ops.logical_and(visible, ops.logical_not(scores < least))",
        "ops.logical_and(visible, scores > least)",
        "tests/test_normalizers.py::test_keys_that_score_as_the_kth_best_stay_too",
        "the k-th best goes",
    ),
    Break(
        "normalizers-top-k-hides-nan",
        "tfattn/core/normalizers.py",
        "ops.logical_and(visible, ops.logical_not(scores < least))",
        "ops.logical_and(visible, scores >= least)",
        "tests/test_normalizers.py::test_a_query_that_may_see_a_nan_becomes_nan[top 3]",
        "a NaN is taken for hidden",
    ),
    Break(
        "normalizers-streamed-as-a-softmax",
        "tfattn/core/paths/choice.py",
        "able = able and not return_weights and normalizer is None",
        "able = able and not return_weights",
        "tests/test_normalizers.py::"
        "test_long_sequences_take_the_dense_path_and_streaming_is_refused[sparsemax]",
        "a long sequence loses its normalizer",
    ),
    Break(
        "sinks-not-on-the-weights",
        "tfattn/layers/attention/base.py",
        "output, *weights = [x * ops.cast(scale, x.dtype) for x in (output, *weights)]",
        "output = output * ops.cast(scale, output.dtype)",
        "tests/test_normalizers.py::"
        "test_a_layer_with_sinks_equals_the_oracle_and_its_weights_agree[float32]",
        "the weights returned know no sink",
    ),
    Break(
        "scores-capped-slope-left-out",
        "tfattn/core/paths/blockwise/block_scores.py",
        "gradient * (self.cap * slope))",
        "gradient * self.cap)",
        "tests/test_blockwise.py::"
        "test_a_capped_product_equals_the_dense_path_and_holds_one_number_a_pair[none-none]",
        "streamed, a cap has no slope",
    ),
    Break(
        "scores-capped-hides-nothing",
        "tfattn/core/scores.py",
        'return ops.where(ops.equal(scores, -float("inf")), scores, found)',
        "return found",
        "tests/test_scores.py::test_a_soft_cap_keeps_a_key_that_its_score_hides",
        "a key beyond a kernel's support is seen within a cap",
    ),
    Break(
        "scores-normalized-without-gain",
        "tfattn/layers/attention/scores.py",
        "return self._normalized(key, self.key_gain)",
        "return self._normalized(key, None)",
        "tests/test_scores.py::test_scores_and_attention_equal_the_oracle[normalized dot]",
        "the gain of keys is left out",
    ),
    Break(
        "scores-temperature-of-the-first-head",
        "tfattn/layers/attention/scores.py",
        "temperature = temperature[:, None, None]  # (H, 1, 1)",
        "temperature = temperature[0]",
        "tests/test_scores.py::test_each_head_learns_a_temperature_of_its_own",
        "all heads have the first one's temperature",
    ),
    Break(
        "blockwise-log-sum-without-its-gradient",
        "tfattn/core/paths/blockwise/differentiation.py",
        "delta -= of_sums",
        "delta -= 0 * of_sums",
        "tests/test_log_sum_exp.py::test_its_gradient_equals_finite_differences[streamed]",
        "the log of the sums has no gradient",
    ),
    Break(
        "blockwise-log-sum-of-nothing-has-a-gradient",
        "tfattn/core/paths/blockwise/differentiation.py",
        "of_sums = tf.where(tf.equal(sums[0], HIDDEN), tf.zeros_like(delta), rest[0])",
        "of_sums = rest[0]",
        "tests/test_log_sum_exp.py::"
        "test_a_query_with_nothing_to_attend_to_has_minus_infinity_and_no_gradient[~causal-streamed]",
        "a row without keys passes on the gradient of −inf",
    ),
    Break(
        "blockwise-log-sum-of-nothing-is-a-number",
        "tfattn/core/paths/blockwise/online_softmax.py",
        "return tf.where(nothing, tf.constant(HIDDEN, row_max.dtype), row_max",
        "return tf.where(nothing, row_max, row_max",
        "tests/test_log_sum_exp.py::test_equals_the_oracle[padding by query-streamed]",
        "a row without keys has a sum",
    ),
    Break(
        "blockwise-log-sum-rows-of-blocks-confused",
        "tfattn/core/paths/blockwise/tiling.py",
        "x = tf.transpose(tf.reshape(x, shape), [0, 2, 1, 3])",
        "x = tf.reshape(x, shape)",
        "tests/test_log_sum_exp.py::test_equals_the_oracle[explicit by head-streamed]",
        "sums stand in other rows",
    ),
    Break(
        "local-log-sum-with-the-weight-for-its-inverse",
        "tfattn/core/paths/blockwise/local.py",
        "sums = row_max - tf.math.log(",
        "sums = row_max + tf.math.log(",
        "tests/test_log_sum_exp.py::test_local_attention_has_it_too[window-0]",
        "local: sums with a wrong sign",
    ),
    Break(
        "dense-log-sum-of-nothing-is-a-number",
        "tfattn/core/softmax.py",
        'return ops.where(ops.any(visible, axis=-1), found, -float("inf"))',
        "return found",
        "tests/test_log_sum_exp.py::test_equals_the_oracle[padding by query-dense]",
        "a row without keys has a sum",
    ),
    Break(
        "blockwise-shared-cache-key-without-mask",
        "tfattn/core/paths/blockwise/differentiation.py",
        "kind = (spec, *((x.dtype",
        "kind = (spec._replace(mask=None), *((x.dtype",
        "tests/test_path_choice.py::"
        "test_calls_with_masks_of_other_kinds_or_other_scores_share_nothing",
        "shared cache key without mask",
    ),
    Break(
        "blockwise-shared-functions-never-dropped",
        "tfattn/core/paths/blockwise/differentiation.py",
        ">= thresholds.SHARED_CALLS",
        ">= 64",
        "tests/test_path_choice.py::test_a_process_keeps_few_shared_traces",
        "shared functions never dropped",
    ),
    Break(
        "blockwise-what-is-not-pure-is-shared",
        "tfattn/core/paths/blockwise/call_spec.py",
        "return facts_of(self.score).is_pure and all(map(trees.is_sha"
        "reable, (self.mask, self.bias)))",
        "return True",
        "tests/test_path_choice.py::test_a_mask_of_ones_own_is_not_shared",
        "what is not pure is shared",
    ),
    Break(
        "blockwise-lengths-are-not-checked",
        "tfattn/core/paths/blockwise/lengths.py",
        "        self._check(tensor, axis, wanted)\n",
        "",
        "tests/test_blockwise_lengths.py::"
        "test_an_array_of_the_wrong_length_in_a_mask_of_ones_own_is_refused[lengths1]",
        "lengths are not checked",
    ),
    Break(
        "scope-outer-counts",
        "tfattn/core/paths/scope.py",
        "return (_open.get() or (None,))[-1]",
        "return (_open.get() or (None,))[0]",
        "tests/test_path_scope.py::test_one_scope_is_entered_again_within_itself_and_after",
        "the outermost scope counts",
    ),
    Break(
        "scope-unheard",
        "tfattn/core/paths/choice.py",
        "if path is None and able:",
        "if path is None and not able:",
        "tests/test_path_scope.py::test_layers_and_models_take_the_path_of_the_scope",
        "no call asks for the scope",
    ),
    Break(
        "scope-export",
        "tfattn/core/paths/scope.py",
        'return path(wanted() or (None if format == "tf_saved_model" else "dense"))',
        "return path(wanted())",
        "tests/test_path_scope.py::test_a_model_exports_one_path_where_the_format_holds_one",
        "an ONNX file holds both paths",
    ),
    Break(
        "export-subclass",
        "tfattn/models/base.py",
        "if input_signature is None and _is_ours(self.call):",
        "if input_signature is None:",
        "tests/test_path_scope.py::test_a_model_with_a_call_of_its_own_is_exported_as_keras_does",
        "a subclass with other inputs is exported for ids",
    ),
    Break(
        "quantization-parts",
        "tfattn/layers/quantization.py",
        "if part.quantization_mode is not None:",
        "if part.quantization_mode is None:",
        "tests/test_quantization.py::"
        "test_a_quantised_model_comes_back_from_its_files[GatedFeedForward-int8]",
        "a file does not say what is quantised in it",
    ),
    Break(
        "blockwise-choice-turned-round",
        "tfattn/core/paths/choice.py",
        "_product(pairs, rows, *heads) >= in_all",
        "_product(pairs, rows, *heads) < in_all",
        "tests/test_path_choice.py::test_attend_chooses_its_path_by_size",
        "choice turned round",
    ),
    Break(
        "blockwise-additive-the-wrong-branch",
        "tfattn/core/paths/blockwise/additive.py",
        "return (tf.reduce_max(tf.abs(left)) < 40.0) & (tf.reduce_max(tf.abs(right)) < 40.0)",
        "return tf.constant(True)",
        "tests/test_blockwise.py::test_additive_scores_far_outside_of_the_range_of_exponentials",
        "additive: the wrong branch",
    ),
    Break(
        "blockwise-padding-of-zeros-not-of-copies",
        "tfattn/core/paths/blockwise/passes.py",
        "tiling.split_keys(key[m], copies=True)",
        "tiling.split_keys(key[m])",
        "tests/test_blockwise.py::"
        "test_a_score_that_is_undefined_at_zero_meets_real_tokens_alone[own-eager]",
        "padding of zeros, not of copies",
    ),
    Break(
        "blockwise-second-derivative-without-the-upstream-s",
        "tfattn/core/paths/blockwise/differentiation.py",
        "sources = [x for x in inputs if x.dtype.is_floating]",
        "sources = [inputs[0], *[tf.identity(x) for x in inputs[1:] if x.dtype.is_floating]]",
        "tests/test_blockwise_derivatives.py::"
        "test_second_derivatives_equal_the_dense_path[scaled dot-causal]",
        "second derivative without the upstream's",
    ),
    Break(
        "blockwise-mask-not-applied-to-partial-blocks",
        "tfattn/core/paths/blockwise/passes.py",
        "tf.where(seen, scores_by_head, HIDDEN))",
        "scores_by_head)",
        "tests/test_blockwise.py::"
        "test_a_relative_mask_of_any_lengths_and_blocks[causal-2-41-0-block1]",
        "mask not applied to partial blocks",
    ),
    Break(
        "blockwise-padding-of-keys-not-hidden",
        "tfattn/core/paths/blockwise/passes.py",
        "seen = seen & inside if tiling.padded else seen",
        "seen = seen",
        "tests/test_blockwise.py::"
        "test_a_relative_mask_of_any_lengths_and_blocks[3 after-1-40--3-block9]",
        "padding of keys not hidden",
    ),
    Break(
        "blockwise-local-first-off-by-one",
        "tfattn/core/paths/blockwise/local.py",
        "sizes, side, first, count, most_scores, log_sum_exp)",
        "sizes, side, first + 1, count, most_scores, log_sum_exp)",
        "tests/test_blockwise_local.py::"
        "test_every_pair_that_the_mask_leaves_is_in_one_run_and_no_other_is[window]",
        "local first off by one",
    ),
    Break(
        "blockwise-local-keys-outside-of-the-sequence-seen",
        "tfattn/core/paths/blockwise/local.py",
        "return ((keys >= 0) & (keys < self.keys))[:, None, None]",
        "return (keys >= 0)[:, None, None]",
        "tests/test_blockwise_local.py::"
        "test_local_attention_equals_the_dense_path_for_any_lengths_sides_and_runs[of t"
        "he square-heads2-41-41-4-150]",
        "local: keys outside of the sequence seen",
    ),
    Break(
        "blockwise-local-what-reaches-beyond-a-run-is-lost",
        "tfattn/core/paths/blockwise/local.py",
        "[0, 0], [0, 0]]) + beyond",
        "[0, 0], [0, 0]]) + 0 * beyond",
        "tests/test_blockwise_local.py::"
        "test_local_attention_equals_the_dense_path_for_any_lengths_sides_and_runs[wind"
        "ow-heads3-40-40-4-1]",
        "local: what reaches beyond a run is lost",
    ),
    Break(
        "blockwise-nothing-shared",
        "tfattn/core/paths/blockwise/differentiation.py",
        "if kind not in _shared:",
        "if True:",
        "tests/test_path_choice.py::test_layers_of_one_kind_share_one_trace[padding]",
        "nothing shared",
    ),
    Break(
        "blockwise-heads-of-a-step-confused",
        "tfattn/core/paths/blockwise/tiling.py",
        "m // self.head_steps * self.chunk,",
        "m * self.chunk,",
        "tests/test_blockwise_side_by_side.py::"
        "test_blocks_side_by_side_equal_the_dense_path[((4, 4, 521, 517), 'padding')]",
        "heads of a step confused",
    ),
    Break(
        "blockwise-local-count-off-by-one",
        "tfattn/core/paths/blockwise/local.py",
        "first, count = min(firsts), max(ends) - min(firsts)",
        "first, count = min(firsts), max(ends) - min(firsts) - 1",
        "tests/test_blockwise_local.py::"
        "test_every_pair_that_the_mask_leaves_is_in_one_run_and_no_other_is[causal wind"
        "ow]",
        "local count off by one",
    ),
    Break(
        "blockwise-local-queries-that-see-nothing-have-gradients",
        "tfattn/core/paths/blockwise/local.py",
        "(tf.where(sees, self._blocks(x), 0.0) for x in (grad_output, delta))",
        "(self._blocks(x) for x in (grad_output, delta))",
        "tests/test_blockwise_local.py::"
        "test_local_attention_equals_the_dense_path_for_any_lengths_sides_and_runs"
        "[beyond-heads1-40-40-4-500]",
        "local: queries that see nothing have gradients",
    ),
    Break(
        "blockwise-local-hidden-scores-of-nothing-are-infinite",
        "tfattn/core/paths/blockwise/local.py",
        "hidden = tf.where(sees, tf.constant(HIDDEN, scores.dtype), 0.0)",
        "hidden = tf.constant(HIDDEN, scores.dtype)",
        "tests/test_blockwise_local.py::"
        "test_queries_of_local_attention_that_see_nothing_pool_to_zero_with_zero_gradients",
        "local: all keys hidden make NaN",
    ),
    # Masks.
    Break(
        "masks-strided",
        "tfattn/core/masks/strided.py",
        "grid.key_positions() - grid.query_positions()",
        "grid.key_positions() - grid.query_rows()",
        "tests/test_masks.py::test_rule_equals_its_definition[strided]",
        "strides count from the first query and not from the query's position",
    ),
    Break(
        "masks-chunks",
        "tfattn/core/masks/chunks.py",
        "== grid.query_positions() // self.size",
        "== grid.query_rows() // self.size",
        "tests/test_masks.py::test_rule_equals_its_definition[chunks]",
        "chunks count queries and not positions",
    ),
    Break(
        "masks-distances-of-one-query-less",
        "tfattn/core/masks/over_queries.py",
        "count = (before[num_queries:-1] - before[:num_keys])[None]",
        "count = (before[num_queries - 1 : -2] - before[:num_keys])[None]",
        "tests/test_masks.py::test_keys_that_no_query_sees_are_told_exactly",
        "a key that the first query alone sees is taken for hidden",
    ),
    Break(
        "masks-unreached-in-gradients",
        "tfattn/core/masks/joins.py",
        "if hooks.is_relative(self) and sides != (None, None):",
        "if False and sides != (None, None):",
        "tests/test_masks.py::test_keys_that_no_query_sees_are_told_exactly",
        "what a joined mask hides from all queries reaches the projections' gradients",
    ),
    Break(
        "masks-chunks-bounds",
        "tfattn/core/masks/chunks.py",
        "(last + 1) * self.size",
        "last * self.size",
        "tests/test_masks.py::test_hooks_tell_the_truth_about_the_mask[chunks-it alone]",
        "the last chunk of a block of queries is skipped",
    ),
    Break(
        "masks-chunks-full",
        "tfattn/core/masks/chunks.py",
        "return last * self.size, (first + 1) * self.size",
        "return first * self.size, (last + 1) * self.size",
        "tests/test_masks.py::test_hooks_tell_the_truth_about_the_mask[chunks-it alone]",
        "queries of several chunks pass for one",
    ),
    Break(
        "masks-chunk-ends",
        "tfattn/core/masks/chunks.py",
        ">= self.size - self.count",
        "> self.size - self.count",
        "tests/test_masks.py::test_rule_equals_its_definition[chunk ends]",
        "one end of a chunk too few",
    ),
    Break(
        "masks-per-head-bounds",
        "tfattn/core/masks/per_head.py",
        "reduce(ranges.hull,",
        "reduce(ranges.overlap,",
        "tests/test_masks.py::test_hooks_tell_the_truth_about_the_mask[per head-it alone]",
        "keys are skipped that one of the heads sees",
    ),
    Break(
        "masks-per-head-full",
        "tfattn/core/masks/per_head.py",
        "reduce(ranges.overlap,",
        "reduce(ranges.hull,",
        "tests/test_masks.py::test_hooks_tell_the_truth_about_the_mask[per head-it alone]",
        "keys pass for seen that one of the heads does not see",
    ),
    Break(
        "masks-per-head-groups",
        "tfattn/core/masks/per_head.py",
        "ops.repeat(ops.broadcast_to(one, shape), count, axis=1)",
        "ops.broadcast_to(one, shape)",
        "tests/test_masks.py::test_rule_equals_its_definition[per head]",
        "a rule has one head and not its group",
    ),
    Break(
        "masks-blocks-bounds",
        "tfattn/core/masks/blocks.py",
        "return low * self.size, high * self.size",
        "return low * self.size, (high - 1) * self.size",
        "tests/test_masks.py::test_hooks_tell_the_truth_about_the_mask[blocks-it alone]",
        "the last block that a plan names is skipped",
    ),
    Break(
        "masks-blocks-seen",
        "tfattn/core/masks/blocks.py",
        "ops.take(before, end) >",
        "ops.take(before, first + 1) >",
        "tests/test_masks.py::test_hooks_tell_the_truth_about_the_mask[blocks-it alone]",
        "of a block of the path the first part of the plan alone counts",
    ),
    Break(
        "masks-blocks-rows",
        "tfattn/core/masks/blocks.py",
        "at <= last // self.size",
        "at < last // self.size",
        "tests/test_masks.py::test_hooks_tell_the_truth_about_the_mask[blocks-it alone]",
        "the last row of a plan in a block of queries is not asked",
    ),
    Break(
        "masks-seen-blocks-either",
        "tfattn/core/masks/joins.py",
        "functools.reduce(ops.logical_or, found)",
        "functools.reduce(ops.logical_and, found)",
        "tests/test_masks.py::test_hooks_tell_the_truth_about_the_mask[blocks per head-it alone]",
        "a block is skipped that one of two masks sees",
    ),
    Break(
        "masks-plan",
        "tfattn/core/masks/blocks.py",
        "rows.append(ops.any(seen, axis=-1))",
        "rows.append(ops.all(seen, axis=-1))",
        "tests/test_masks.py::test_a_plan_names_the_blocks_with_a_pair_that_may_attend[causal-2]",
        "a plan leaves out blocks that are seen in part",
    ),
    Break(
        "masks-segments-bounds",
        "tfattn/core/masks/segments.py",
        "of_key <= high",
        "of_key < high",
        "tests/test_masks.py::test_hooks_tell_the_truth_about_the_mask[segments in order-it alone]",
        "the last segment of a block of queries is skipped",
    ),
    Break(
        "masks-segments-full",
        "tfattn/core/masks/segments.py",
        "ops.logical_and(of_key == low, low == high)",
        "of_key == low",
        "tests/test_masks.py::test_hooks_tell_the_truth_about_the_mask[segments in order-it alone]",
        "queries of several segments pass for one",
    ),
    Break(
        "masks-segments-positions",
        "tfattn/core/masks/segments.py",
        "ops.logical_or(ids != ops.roll(ids, 1, axis=1), tokens == 0)",
        "ids != ops.roll(ids, 1, axis=1)",
        "tests/test_packing.py::test_positions_count_from_0_wherever_the_id_changes[ids1]",
        "a row that ends with the id it began with does not begin at 0",
    ),
    Break(
        "positions-given",
        "tfattn/layers/positions/added.py",
        "if positions is None:\n            tokens",
        "if True:\n            tokens",
        "tests/test_packing.py::test_given_positions_are_counted_from_the_start",
        "given positions are not looked at",
    ),
    Break(
        "blockwise-holes-computed",
        "tfattn/core/paths/blockwise/visible_keys.py",
        "        if seen is None:",
        "        if True:",
        "tests/test_blockwise_tiling.py::test_blocks_that_the_mask_rules_out_are_not_computed",
        "the holes of a plan are not skipped",
    ),
    Break(
        "blockwise-holes-confused",
        "tfattn/core/paths/blockwise/visible_keys.py",
        "return n if self.order is None else self.order[n]",
        "return n",
        "tests/test_blockwise_visible_keys.py::test_of_a_plan_the_blocks_that_it_names_are_left_those_between_them_not",
        "the first blocks are taken for those that a plan names",
    ),
    Break(
        "nonsense-seed",
        "tfattn/_checks.py",
        "if non_negative_int(who, argument, value) >= 2**63:",
        "if value == -2:",
        "tests/test_nonsense.py::test_a_seed_is_looked_at_without_any_dropout",
        "any seed is taken, and fails later or never",
    ),
    Break(
        "nonsense-seed-of-numpy",
        "tfattn/_checks.py",
        '        fail(who, argument, "be below 2**63", value)\n    return int(value)',
        '        fail(who, argument, "be below 2**63", value)\n    return value',
        "tests/test_nonsense.py::test_a_seed_of_numpy_is_one",
        "a seed is in a config what JSON has not",
    ),
    Break(
        "nonsense-open-file",
        "tfattn/_checks.py",
        "if not isinstance(value, str | os.PathLike) or not isinstance(os.fspath(value), str):",
        "if False:",
        "tests/test_nonsense.py::test_a_number_is_not_taken_for_an_open_file",
        "a number is written to as a file that is open",
    ),
    Break(
        "nonsense-ragged",
        "tfattn/_checks.py",
        'if hasattr(value, "row_splits") or getattr(value, "ragged", False) is True:',
        "if False:",
        "tests/test_nonsense.py::test_ragged_and_sparse_tensors_get_the_recipe",
        "a ragged tensor fails somewhere inside",
    ),
    Break(
        "nonsense-ragged-symbols",
        "tfattn/_checks.py",
        'getattr(value, "ragged", False) is True:',
        "False:",
        "tests/test_nonsense.py::test_symbolic_ragged_inputs_get_it_too",
        "a ragged input of a functional model fails when it runs",
    ),
    Break(
        "nonsense-sparse",
        "tfattn/_checks.py",
        'if sparse or getattr(value, "sparse", False) is True:',
        "if False:",
        "tests/test_nonsense.py::test_ragged_and_sparse_tensors_get_the_recipe",
        "a sparse tensor fails somewhere inside",
    ),
    Break(
        "nonsense-no-tensor",
        "tfattn/_checks.py",
        'if isinstance(value, type) or not (hasattr(value, "shape") and hasattr(value, "dtype")):',
        "if False:",
        "tests/test_nonsense.py::test_what_is_no_tensor_is_no_key",
        "a string is asked for its shape",
    ),
    Break(
        "nonsense-width",
        "tfattn/_checks.py",
        "if shape[-1] == 0:",
        "if False:",
        "tests/test_nonsense.py::test_a_width_of_none_is_refused",
        "a width of 0 is a division by it",
    ),
    Break(
        "nonsense-batch",
        "tfattn/_checks.py",
        "if None not in (shape[0], other[0]) and shape[0] != other[0]:",
        "if shape[0] and other[0] and shape[0] != other[0]:",
        "tests/test_nonsense.py::test_an_empty_batch_goes_with_no_other",
        "an empty batch passes beside one that is not",
    ),
    Break(
        "nonsense-batches",
        "tfattn/_checks.py",
        "if None not in (shape[0], other[0]) and shape[0] != other[0]:",
        "if False:",
        "tests/test_nonsense.py::test_attend_refuses_batches_and_widths_that_disagree",
        "batches that disagree fail in a product",
    ),
    Break(
        "nonsense-rank",
        "tfattn/layers/attention/base.py",
        "            _checks.rank(who, name, shape, (3,), letters)\n",
        "",
        "tests/test_nonsense.py::test_a_rank_of_one_is_refused_with_the_shapes_that_are_taken",
        "a rank of one is an IndexError",
    ),
    Break(
        "nonsense-booleans",
        "tfattn/core/floats.py",
        "    _checks.array(who, argument, tensor, letters)\n",
        "",
        "tests/test_nonsense.py::test_booleans_are_not_multiplied",
        "booleans are multiplied",
    ),
    Break(
        "nonsense-no-tokens",
        "tfattn/layers/attention/projection.py",
        "ops.reshape(flat, (*tokens, *features))",
        "ops.reshape(flat, (-1, *tokens[1:], *features))",
        "tests/test_nonsense.py::test_no_tokens_at_all_keep_their_batch",
        "of no tokens the batch is lost",
    ),
    Break(
        "nonsense-deep-json",
        "tfattn/data/vocabulary.py",
        "except (ValueError, KeyError, TypeError, AttributeError, RecursionError):",
        "except (ValueError, KeyError, TypeError, AttributeError):",
        "tests/test_nonsense.py::test_json_without_end_is_no_vocabulary",
        "a file nested without end is a RecursionError",
    ),
    Break(
        "nonsense-sources",
        "tfattn/training/bleu.py",
        "if isinstance(sources, str | bytes) or not isinstance(sources, Iterable):",
        "if False:",
        "tests/test_nonsense.py::test_sources_of_none_are_named",
        "None as sentences is an error of a list",
    ),
    Break(
        "nonsense-flags",
        "tfattn/_checks.py",
        '    if not known and not tensor:\n        fail(who, argument, "be True or False", value)',
        "    pass",
        "tests/test_nonsense.py::test_nonsense_is_refused_by_name[attend]",
        "any object is taken for yes",
    ),
    Break(
        "properties-heads-of-keys",
        "tfattn/core/products.py",
        "np.repeat(np.arange(groups), heads // groups)",
        "np.tile(np.arange(groups), heads // groups)",
        "tests/test_properties.py::test_attend_equals_the_oracle_in_output_and_every_gradient",
        "heads meet keys of another group, under scores that are no product",
    ),
    Break(
        "properties-window-of-others",
        "tfattn/core/masks/grid.py",
        "return self.num_keys - self.num_queries if self.offset is None else self.offset",
        "return 0 if self.offset is None else self.offset",
        "tests/test_properties.py::test_attend_equals_the_oracle_in_output_and_every_gradient",
        "fewer queries than keys line up at the start",
    ),
    Break(
        "properties-rotary-of-others",
        "tfattn/layers/attention/multi_head.py",
        "first = num_keys - num_queries if start is None else start",
        "first = 0 if start is None else start",
        "tests/test_properties.py::test_heads_equal_the_oracle_under_any_positions_and_masks",
        "fewer queries than keys turn as the first ones",
    ),
    Break(
        "properties-oracle",
        "tests/properties.py",
        "of_scores = weights * (of_weights - (weights * of_weights).sum(-1, keepdims=True))",
        "of_scores = weights * of_weights",
        "tests/test_properties.py::test_gradients_of_the_oracle_are_its_slopes",
        "the oracle of the properties is itself wrong",
    ),
    Break(
        "ctranslate2-positions",
        "tfattn/convert/ctranslate2.py",
        'places = keras.ops.arange(length, dtype="int32")',
        'places = keras.ops.arange(length, dtype="int32") + 1',
        "tests/convert/test_ctranslate2.py::test_tokens_that_are_given_have_the_same_log_probabilities",
        "the table of positions begins at 1, as the engine's own",
    ),
    Break(
        "ctranslate2-epsilon",
        "tfattn/convert/ctranslate2.py",
        '"layer_norm_epsilon": shape.epsilon,',
        '"layer_norm_epsilon": 1e-5,',
        "tests/convert/test_ctranslate2.py::test_tokens_that_are_given_have_the_same_log_probabilities",
        "an epsilon of one's own is left out in silence",
    ),
    Break(
        "ctranslate2-scale",
        "tfattn/convert/ctranslate2.py",
        'getattr(stack.positions, "input_scale", 1.0)',
        "stack.width**0.5",
        "tests/convert/test_ctranslate2.py::test_tokens_that_are_given_have_the_same_log_probabilities",
        "embeddings are always scaled by √width",
    ),
    Break(
        "ctranslate2-empty",
        "tfattn/convert/ctranslate2_folder.py",
        "min_decoding_length=0,",
        "min_decoding_length=1,",
        "tests/convert/test_ctranslate2.py::test_greedy_search_writes_the_same",
        "no translation may be empty, as the engine has it",
    ),
    Break(
        "ctranslate2-model",
        "tfattn/convert/ctranslate2_folder.py",
        "written != folders.fingerprints(folder, folders.ENGINE_FILES)",
        "written != written",
        "tests/convert/test_ctranslate2.py::test_a_model_of_the_same_sizes_in_its_place_is_refused",
        "another model of the same sizes translates",
    ),
    Break(
        "stream-joined",
        "tfattn/decoding/streaming.py",
        "os.path.commonprefix([before, text])",
        "text",
        "tests/test_decoding_stream.py::test_a_word_in_parts_is_given_as_the_tokenizer_joins_it",
        "a part of a word is given before the next one is joined to it",
    ),
    Break(
        "ctranslate2-vocabularies",
        "tfattn/convert/ctranslate2_folder.py",
        "if theirs != ours or written[:2]",
        "if theirs != ours and written[:2]",
        "tests/convert/test_ctranslate2.py::test_a_folder_of_other_vocabularies_is_refused",
        "vocabularies of as many words are taken for others",
    ),
    Break(
        "onnx-memory",
        "tfattn/convert/onnx.py",
        '"memory_values": memory_values[i],',
        '"memory_values": memory_values[0],',
        "tests/convert/test_onnx.py::test_each_step_has_the_logits_of_a_call",
        "each layer of the step sees the first one's memory",
    ),
    Break(
        "convert-heads-flat",
        "tfattn/convert/weights.py",
        'inputs = len(shape) - 1 if "attention_output/" in name else 1',
        "inputs = 1",
        "tests/convert/test_weights.py::test_rows_of_pytorch_are_outputs_with_heads_side_by_side",
        "an output map is taken for one to heads",
    ),
    Break(
        "convert-unknown-weights",
        "tfattn/convert/weights.py",
        "(*expected, *(name for name in found if name not in expected))",
        "expected",
        "tests/convert/test_weights.py::test_one_error_lists_every_weight_that_does_not_fit",
        "weights that nothing takes are left out in silence",
    ),
    Break(
        "convert-score",
        "tfattn/convert/weights.py",
        "plain = type(score) is DotProductScore and score.scale is None",
        "plain = type(score) is DotProductScore",
        "tests/convert/test_keras.py::test_what_keras_does_not_have_is_refused_by_name",
        "a scale of one's own is left out in silence",
    ),
    Break(
        "convert-concat",
        "tfattn/convert/keras.py",
        "matrix = identity * scale",
        "matrix = identity",
        "tests/convert/test_keras.py::test_single_heads_from_keras_compute_the_same",
        "the scale within the tanh is left out",
    ),
    Break(
        "convert-marian-ids",
        "tfattn/convert/marian.py",
        "0, ids + 1)",
        "0, ids)",
        "tests/convert/test_marian.py::test_ids_go_there_and_back",
        "Marian's end of a sentence becomes padding",
    ),
    Break(
        "convert-marian-positions",
        "tfattn/convert/marian.py",
        "return np.concatenate(halves, axis=1)",
        "return np.stack(halves, axis=2).reshape(length, width)",
        "tests/convert/test_marian.py::test_sinusoids_are_all_sines_and_then_all_cosines",
        "sines and cosines take turns",
    ),
    Break(
        "processes-bytes-in-one-piece",
        "tfattn/training/processes.py",
        "divmod(len(content), PIECE)",
        "(0, len(content))",
        "tests/test_first_process.py::test_bytes_are_sent_in_pieces",
        "what 32 bits cannot count is sent at once",
    ),
    Break(
        "processes-errors-kept",
        "tfattn/training/processes.py",
        "if reason is not None:",
        "if error is not None:",
        "tests/test_first_process.py::test_an_error_of_the_first_process_is_raised_in_all",
        "other processes wait for a first one that failed",
    ),
    Break(
        "data-shards-without-twins",
        "tfattn/data/rows.py",
        'getattr(batches, "_inputs", tuple)()',
        "()",
        "tests/test_data_shards.py::test_rows_that_come_twice_are_twins_over_all_shards",
        "R-Drop trains as plain cross-entropy where a dataset was prefetched before its shards",
    ),
    Break(
        "data-shards-of-one-epoch",
        "tfattn/data/arrays.py",
        "return map(self._change, self._batches)",
        "return map(self.__getitem__, range(len(self)))",
        "tests/test_data_shards.py::test_shards_shuffle_with_the_batches_that_they_are_of",
        "shards repeat the order of one epoch",
    ),
]


def run(folder, *tests):
    """(exit status of pytest, what it wrote) for some tests of the tree in `folder`."""
    with tempfile.TemporaryFile("w+") as log:
        child = os.fork()
        if not child:
            signal.alarm(SECONDS)
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            os.chdir(folder)
            sys.path[:] = [str(folder), *(path for path in sys.path if path != str(ROOT))]
            status = 3
            with contextlib.suppress(BaseException):
                import pytest

                status = pytest.main(["-q", "-x", "-p", "no:cacheprovider", *tests])
            sys.stdout.flush()
            os._exit(int(status))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        log.seek(0)
        return status, log.read()


def verdict(folder, each):
    """How a break ends: "caught", or what is wrong; and what the tests wrote."""
    file = folder / each.path
    whole = file.read_text(encoding="utf-8") if file.is_file() else ""
    if whole.count(each.old) != 1:
        return f"its text stands {whole.count(each.old)} times in {each.path}", ""
    file.write_text(whole.replace(each.old, each.new), encoding="utf-8")
    try:
        status, log = run(folder, each.tests)
    finally:
        file.write_text(whole, encoding="utf-8")
    return {0: "NOT caught", 1: "caught"}.get(
        status, f"no verdict, pytest ended with {status}"
    ), log


def copied(folder):
    """The tree's copy in `folder`, without what is made by tools."""
    made = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "shared", "build", "dist")
    return pathlib.Path(shutil.copytree(ROOT, folder / "tree", ignore=made))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="only breaks whose name begins with this")
    parser.add_argument("--verbose", action="store_true", help="show what the tests write")
    options = parser.parse_args()
    chosen = [each for each in BREAKS if each.name.startswith(options.only)]
    if not chosen:
        parser.error(f"no break's name begins with {options.only!r}")

    # A changed file may be as long and as young as the one before: compiled code would be stale.
    sys.dont_write_bytecode = True
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", MPLBACKEND="Agg")
    with contextlib.redirect_stderr(io.StringIO()):
        import keras  # noqa: F401  (imported once for all forks)
        import pytest  # noqa: F401

    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = copied(pathlib.Path(folder))
        status, log = run(tree, *dict.fromkeys(each.tests for each in chosen))
        if status:
            sys.exit(f"{log}\nWithout a break, pytest ended with {status}.")
        for each in chosen:
            start = time.perf_counter()
            result, log = verdict(tree, each)
            failed += result != "caught"
            seconds = time.perf_counter() - start
            print(f"{result:12} {each.name} ({each.what}), {seconds:.0f} s", flush=True)
            if options.verbose or result.startswith("no verdict"):
                print(log)
    print(f"{len(chosen) - failed} of {len(chosen)} breaks caught")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
