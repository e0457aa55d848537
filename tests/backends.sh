#!/usr/bin/env bash
# The suite on another backend than the newest TensorFlow:
#
#   bash tests/backends.sh jax|torch|oldest [what pytest is to run]
#
#   jax     in an environment of its own, without TensorFlow
#   torch   in an environment of its own, without TensorFlow
#   oldest  on TensorFlow, with the lowest versions of what setup.cfg installs
#
# Alone it runs what CI runs. Environments are made once, in .venv-NAME; with the variable PYTHON it
# takes the environment of that interpreter instead.
set -euo pipefail
cd "$(dirname "$0")/.."
name=${1:?jax, torch or oldest}
shift

requirements() { # what setup.cfg states, and what the suite needs besides
  python3 - "$1" <<'PYTHON'
import configparser
import sys

config = configparser.ConfigParser()
config.read("setup.cfg")
installed = config["options"]["install_requires"].split()
if sys.argv[1] == "oldest":
    installed = [line.replace(">=", "==") for line in installed]
else:
    installed = [line for line in installed if not line.startswith("tensorflow")] + [sys.argv[1]]
extras = config["options.extras_require"]
extras = [line for extra in ("plot", "text", "sklearn") for line in extras[extra].split()]
print(*installed, *extras, "hypothesis", "pytest", "pytest-xdist")
PYTHON
}

core="tests/test_attend.py tests/test_softmax.py tests/test_scores.py tests/test_kernels.py
  tests/test_masks.py tests/test_biases.py tests/test_normalizers.py tests/test_merging.py"
layers="tests/test_multi_head.py tests/test_attention_layers.py tests/test_attention_positions.py
  tests/test_blocks.py tests/test_parts.py"
models="tests/test_transformer.py tests/test_language_model.py tests/test_seq2seq.py
  tests/test_kernel_regression_model.py"
training="tests/test_training.py tests/test_rdrop.py tests/test_schedules.py tests/test_resume.py
  tests/test_data_batches.py tests/test_data_epochs.py"
decoding="tests/test_decoding.py tests/test_decoding_beams.py tests/test_decoding_sampling.py
  tests/test_decoding_rules.py tests/test_decoding_beam_rules.py tests/test_decoding_stream.py
  tests/test_decoding_translate.py tests/test_transformer_decoding.py"
streaming="tests/test_checkpointed.py tests/test_path_scope.py tests/test_log_sum_exp.py
  tests/test_benchmark_gpu.py"
all="tests/conformance $core $layers $models $training $decoding"
case $name in
  jax) backend=jax files="$all $streaming tests/test_plot.py" ;;
  torch) backend=torch files="$all $streaming" ;;
  oldest) backend=tensorflow files=$all ;;
  *) echo "jax, torch or oldest? Received: $name" >&2 && exit 2 ;;
esac

python=${PYTHON:-.venv-$name/bin/python}
if [ ! -x "$python" ]; then
  python3 -m venv ".venv-$name"
  read -ra packages <<<"$(requirements "$name")"
  "$python" -m pip install --quiet "${packages[@]}"
  # Without its own requirements, of which TensorFlow is one.
  "$python" -m pip install --quiet --no-deps --editable .
fi
if [ "$backend" != tensorflow ] && [ -z "${PYTHON:-}" ]; then
  "$python" -c "import importlib.util as u; assert u.find_spec('tensorflow') is None, 'is there'"
fi

export KERAS_BACKEND=$backend
echo "$name: $("$python" -c "import keras; print('Keras', keras.__version__)") on $backend"
if [ $# -eq 0 ]; then
  # The quick tier, which takes one row a class of the conformance table.
  read -ra tests <<<"$(echo $files)"
  set -- --quick --numprocesses 2 --dist loadfile "${tests[@]}"
fi
"$python" -m pytest --quiet -rs "$@"
