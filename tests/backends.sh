#!/usr/bin/env bash
# The suite, or files of it, on another backend: bash tests/backends.sh jax|torch|oldest [pytest's arguments]
#
#   jax     in an environment of its own without TensorFlow
#   torch   in an environment of its own with PyTorch and without TensorFlow; or with the Python that
#           the variable PYTHON names
#   oldest  on TensorFlow, with the lowest versions that setup.cfg states
#
# Without arguments it runs what CI runs. Environments are kept in .venv-NAME.
set -euo pipefail
cd "$(dirname "$0")/.."
name=${1:?jax, torch or oldest}
shift

# What setup.cfg states: its own requirements and those of the extras that the suite needs.
requirements() {
  python3 - "$1" <<'PYTHON'
import configparser
import sys

config = configparser.ConfigParser()
config.read("setup.cfg")
extras = config["options.extras_require"]
lines = [config["options"]["install_requires"], extras["plot"], extras["text"], extras["sklearn"]]
stated = " ".join(lines).split()
if sys.argv[1] == "oldest":
    stated = [line.replace(">=", "==") for line in stated]
else:
    stated = [line for line in stated if not line.startswith("tensorflow")] + [sys.argv[1]]
print(*stated, "hypothesis", "pytest", "pytest-xdist")
PYTHON
}

python=${PYTHON:-.venv-$name/bin/python}
if [ ! -x "$python" ]; then
  python3 -m venv ".venv-$name"
  # shellcheck disable=SC2046 (one word each)
  "$python" -m pip install --quiet $(requirements "$name")
  # Without its requirements, of which TensorFlow is one.
  "$python" -m pip install --quiet --no-deps --editable .
fi

core="tests/test_attend.py tests/test_softmax.py tests/test_scores.py tests/test_kernels.py
  tests/test_masks.py tests/test_biases.py tests/test_normalizers.py"
layers="tests/test_multi_head.py tests/test_attention_layers.py tests/test_blocks.py"
models="tests/test_transformer.py tests/test_seq2seq.py tests/test_language_model.py"
training="tests/test_training.py tests/test_rdrop.py tests/test_schedules.py tests/test_resume.py
  tests/test_data_batches.py tests/test_data_epochs.py"
decoding="tests/test_decoding.py tests/test_decoding_beams.py tests/test_decoding_sampling.py
  tests/test_decoding_translate.py tests/test_transformer_decoding.py"

case $name in
  jax) export KERAS_BACKEND=jax files="tests/conformance $core $layers $models $training $decoding tests/test_plot.py" ;;
  torch) export KERAS_BACKEND=torch files="tests/conformance $core $layers $training $decoding" ;;
  oldest) export KERAS_BACKEND=tensorflow files="tests/conformance $core $models $training" ;;
  *) echo "jax, torch or oldest? Received: $name" >&2 && exit 2 ;;
esac
if [ "$name" = jax ]; then
  "$python" -c 'import importlib.util as u; assert u.find_spec("tensorflow") is None, "is here"'
fi
