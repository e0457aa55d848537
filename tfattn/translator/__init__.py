"""Floor 4: the command-line translator, `python -m tfattn.translator --help`.

__main__    the arguments
presets     sizes of the models, and how each is trained
corpus      sentence pairs and vocabularies
curriculum  what is learnt from in which epochs, and at which rate
folder      the files that a run keeps
resume      what a run is made of, and what it refuses to go on with
run         the training
report      scores, translations and pictures at its end
lines       lines to translate with a trained model
"""
