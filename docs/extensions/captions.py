"""What figures of the demos show: a sentence for each file that a demo writes, `demo/file`."""

CAPTIONS = {
    "attention_cues/keys": "The keys of five things: the cup stands out, the book is to read.",
    "attention_cues/table": "The table seen twice: without a query the cup is bright, with a query "
    "that wants to read the book is.",
    "bahdanau_translation/loss": "The loss on the training and the validation sentences.",
    "bahdanau_translation/attention": "The alignment: a row is a French word that is written, a "
    "column an English word that is read.",
    "bahdanau_translation/flow": "The same alignment as lines between the two sentences: the "
    "darker and the thicker, the larger the weight.",
    "batched_matmul/means": "The weights and the values of two matrices of a batch, and their "
    "means, 4.5 and 14.5.",
    "convolution_recurrence_attention/operations": "Operations of a layer of width 512. "
    "Self-attention and recurrence cross at 512 tokens.",
    "convolution_recurrence_attention/paths": "The longest path between two tokens: one step "
    "with self-attention, n with recurrence.",
    "convolution_recurrence_attention/times": "The time of a call, measured. The thin lines have "
    "the slopes that the operations predict.",
    "find_a_head/heads": "Above: the weights of four heads in a sentence. Below: the importance of "
    "all twelve heads, and what breaks as more and more of them are switched off.",
    "hard_attention/accuracy": "Accuracy during training: soft attention and both estimators of "
    "hard attention learn the task, a blind pick does not.",
    "hard_attention/noise": "The noise of one draw of each estimator of the gradient, and the "
    "error of the mean of 300 draws.",
    "hard_attention/weights": "The weights for three questions after training: all three "
    "methods choose the same card.",
    "image_patches/patches": "An image of 8 × 8 pixels, and the 16 patches that are its tokens.",
    "image_patches/accuracy": "The accuracy of each model on 500 images.",
    "image_patches/weights": "Ten images, each under its weights: the stronger the color, the "
    "larger the weight.",
    "image_patches/covered": "The accuracy as patches are covered: at random, by the greatest "
    "weight, and by the most ink.",
    "kernel_regression/fits": "The training points, the true curve and three ways of pooling.",
    "kernel_regression/weights": "The weights of all queries: wide with a bandwidth of 1, near "
    "the diagonal with the learned one.",
    "kernel_regression/kernels": "Five kernels, and the curve that each fits with a bandwidth of "
    "1, with its error.",
    "kernel_regression_tool/bandwidths": "The leave-one-out error and the error against the truth "
    "by bandwidth. The dot is the bandwidth that was chosen.",
    "kernel_regression_tool/band": "The training points, the true curve, the fit and its 95% band.",
    "kernel_regression_tool/surface": "The true surface with 400 noisy points, and the local "
    "linear fit.",
    "kernel_regression_tool/diabetes": "The progression of a disease over two measurements. A dot "
    "is a patient.",
    "kernel_regression_tool/consistency": "The error falls with the number of points n, compared "
    "with a power of n, −2/5.",
    "laws/scale": "The mean of the largest weight by width: without the scale it grows, with it "
    "it stays.",
    "laws/norms": "The gradient of the last feed-forward matrix by the number of blocks, with "
    "logarithmic axes.",
    "laws/edge": "The bias by bandwidth, with logarithmic axes: a slope of 1 for the mean at the "
    "edge, of 2 for the others.",
    "laws/bandwidth": "The chosen bandwidth by the number of points n, compared with a power of n, "
    "−1/5.",
    "laws/risk": "The risk by the number of points n, compared with a power of n, −4/5.",
    "laws/features": "The error of the weights by the number of random vectors, for trigonometric "
    "and positive features and norms of 1 and 3.",
    "laws/copy": "The share of letters that six kinds of positions copy right. The vertical line "
    "is the longest text of the training.",
    "learned_bandwidth/bandwidths": "The learned bandwidth narrows with points, widens with noise "
    "and narrows with steepness. Leave-one-out chooses the same.",
    "learned_bandwidth/slopes": "The power of each quantity in the bandwidth, by dimension: "
    "learned, by leave-one-out, and by two laws.",
    "learned_bandwidth/task": "A task on a circle, fitted by softmax attention and by linear "
    "attention; and the weights of one query.",
    "learned_bandwidth/errors": "The squared error by the number of points: that of softmax "
    "attention falls, that of linear attention hardly does.",
    "masked_attention/triangle": "Weights under a causal mask: none above the diagonal.",
    "masked_attention/moved": "How far each output moves when the sixth word is replaced. With a "
    "causal mask the five before it stay.",
    "masked_attention/masks": "Twelve masks: four plain ones, and eight that combine others.",
    "masked_attention/padding": "The weights of three rows of a batch, with 5, 8 and no real keys.",
    "multi_head/loss": "The training loss of one head, two heads and two additive heads.",
    "multi_head/heads": "One head divides its weight between two letters. Of two heads each looks "
    "at one of them.",
    "positions/counter": "Counting to 15 in binary: the higher the bit, the more slowly it "
    "changes.",
    "positions/waves": "Above: dimensions 4 to 7 over the positions. Below: the whole encoding, a "
    "row a dimension, a column a position.",
    "positions/clocks": "Pairs of dimensions as clocks: an offset turns each hand by an angle of "
    "its own.",
    "positions/weights": "The weights that made the data, and what two encodings have learned of "
    "them.",
    "positions/alike": "The cosine between the encodings of any two positions, of sines and "
    "cosines, and learned.",
    "residuals_and_norms/norms": "A batch, and the same after each norm: layer norm works along "
    "rows, batch norm along columns.",
    "residuals_and_norms/moved": "How far the output of a sentence moves when its batch changes: "
    "not at all after layer norm.",
    "residuals_and_norms/gradients": "The length of the gradient on its way down, with a "
    "logarithmic axis. In plain layers a millionth is left.",
    "residuals_and_norms/alike": "The mean cosine between tokens by height: with residuals they "
    "stay more distinct.",
    "scoring_functions/masked_softmax": "Masked softmax with a length for each matrix, and with a "
    "length for each row.",
    "scoring_functions/weights": "With equal keys the real ones share the weight evenly.",
    "scoring_functions/scores": "The weights of the same query over the same keys, by five "
    "scoring functions.",
    "scoring_functions/variance": "The variance of dot products grows with the width. Scaled it "
    "stays 1.",
    "scoring_functions/gradient": "The mean derivative of a weight by its score: without the scale "
    "it falls with the width.",
    "self_attention_by_hand/weights": "How much each input attends to each.",
    "sets/weights": "The learned weights of a set's seven measurements, beside those of inverse "
    "variance.",
    "sets/errors": "The errors of each model on three kinds of sets. Only positions suffer from "
    "another order.",
    "time_series/errors": "The error of four forecasts on two kinds of data.",
    "time_series/weights": "A series, and the weights of the last query in two heads: they lie "
    "whole seasons back.",
    "time_series/forecast": "A series, how it goes on, and three forecasts of it.",
    "transformer_from_scratch/loss": "The loss of the model from scratch and of the package's.",
    "transformer_from_scratch/heads": "Where the heads of the layer from scratch look.",
    "transformer_translation/loss": "The loss on the training and the validation sentences.",
    "transformer_translation/encoder": "Self-attention of the encoder: a row a block, a column a "
    "head.",
    "transformer_translation/decoder": "Masked self-attention of the decoder: nothing above the "
    "diagonal.",
    "transformer_translation/between": "Encoder-decoder attention: a row of each map is a French "
    "word, a column an English one.",
    "transformer_translation/flow": "The mean of the last layer's heads as lines between the "
    "sentences.",
}
