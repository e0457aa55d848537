"""The command-line translator, `python -m tfattn.translator --help`.

__main__     the commands, and the status that they end with
arguments    what each command takes
presets      sizes of the models, and how each is trained
corpus       sentence pairs and vocabularies
curriculum   which batches are used in which epochs, and at which learning rate
folder       the files that a run keeps
resume       which settings a run was begun with, and whether it can be resumed
run          the training
translating  translations, and the search that options name
report       scores, translations and pictures at its end
scoring      BLEU of the models of one or more runs
lines        lines to translate with a trained model
exporting    a model in the formats of other programs
"""
