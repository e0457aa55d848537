"""Floor 4: weights from and to other libraries. Empty so far; this is the contract of what comes.

A converter is a module for one library, with a function for each way and kind of layer:

    from_x(layer_or_state) -> a tfattn layer or model that computes the same
    to_x(layer) -> the other library's layer, or the state that it loads

`from_x` takes the other library's object, or the state that its files hold, such as a dict of names
to arrays, and makes a built layer: sizes are read from the weights where these tell, else they are
arguments. `to_x` undoes it: there and back, the weights are bit for bit the same. What the other
library has and this one has not, or the other way round, is refused by a `ValueError` that names
it; nothing is left out in silence.

A converter knows floors 0 to 3 and the sides; none of them knows a converter. The other library is
imported inside of the function that needs it, through `tfattn._optional`, and a function that can
do with the arrays of a state does without it. Its test holds the outputs of both against each
other, with weights that no initializer gives, padding and masks included.
"""
