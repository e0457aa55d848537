"""The command-line translator, `python -m tfattn.translator --help`.

__main__     the commands and their exit status
arguments    the arguments of each command
presets      model sizes and training settings
corpus       sentence pairs and vocabularies
curriculum   training phases and the learning rate
folder       the files in a run's folder
resume       the options of an earlier run, which a resumed run shares
run          the training
translating  translations, with the search selected by the options
report       scores, translations and figures after the training
scoring      BLEU and chrF of the models of one or more runs, and log-probabilities of pairs
lines        lines to translate with a trained model
converting   a run from a published translator, and a model in other formats
"""
