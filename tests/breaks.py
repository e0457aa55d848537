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
    # Weights: softmax, kernels, scores.
    Break(
        "softmax-empty-row",
        "tfattn/core/softmax.py",
        "_softmax(ops.where(visible, scores, _LOWEST)) * some",
        "_softmax(ops.where(visible, scores, _LOWEST))",
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
        "self.dropout if training else 0.0",
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
        "memory = ops.where(self._checked_mask(memory_mask, memory)[..., None], memory, 0.0)",
        "self._checked_mask(memory_mask, memory)",
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
        "others = ops.not_equal(index[:, None], ",
        "others = ops.not_equal(0 * index[:, None] - 1, ",
        "tests/test_kernel_regression_model.py::"
        "test_batches_and_shuffling_change_no_leave_one_out_error[7]",
        "the bandwidth is learnt from points that see themselves",
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
        "tfattn/decoding/beams.py",
        "ops.where(found.ended, 0.0, 1.0)",
        "1.0",
        "tests/test_decoding_beams.py::test_few_beams_find_what_the_search_in_python_finds",
        "a hypothesis grows after its end",
    ),
    Break(
        "beams-other-sentence",
        "tfattn/decoding/beams.py",
        "chosen + sentences * (width * k)",
        "chosen",
        "tests/test_decoding_beams.py::test_few_beams_find_what_the_search_in_python_finds",
        "every sentence goes on with the beams of the first",
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
        "np.minimum(limits, most)",
        "limits",
        "tests/test_decoding_translate.py::"
        "test_a_sentence_gets_room_by_its_own_length_and_no_more_than_the_model_has",
        "a translation is longer than the model's positions reach",
    ),
    # Data.
    Break(
        "vocabulary-forged",
        "tfattn/data/vocabulary.py",
        "if word.split() != [word] or word in _SPECIAL_WORDS:",
        "if word.split() != [word]:",
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
        "tfattn/plot/viewer.py",
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
        "seen[:, None, :, None] if len(tokens.shape) == 4",
        "seen[..., None] if len(tokens.shape) == 4",
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
        "tfattn/core/paths/blockwise/passes.py",
        "delta = tf.reduce_sum(grad_output * output, -1, keepdims=True)",
        "delta = 0 * tf.reduce_sum(grad_output * output, -1, keepdims=True)",
        "tests/test_blockwise.py::test_three_axes",
        "delta left out",
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
        "blockwise-choice-turned-round",
        "tfattn/core/paths/choice.py",
        "_product(pairs, rows, *heads) >= least",
        "_product(pairs, rows, *heads) < least",
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
        "(queries, keys, repeats), side, first, count)",
        "(queries, keys, repeats), side, first + 1, count)",
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
