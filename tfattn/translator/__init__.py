"""The command-line translator, `python -m tfattn.translator --help`.

__main__     the commands and their exit status
arguments    the arguments of each command
presets      model sizes, training settings and the learning rate
corpus       sentence pairs, vocabularies and batches
folder       the files in a run's folder
run          the training, new or resumed
translating  translations, with the search selected by the options
report       scores, translations and figures after the training
scoring      BLEU and chrF of the models of one or more runs, and log-probabilities of pairs
lines        lines to translate with a trained model
converting   a run from a published translator, and a model in other formats
"""
