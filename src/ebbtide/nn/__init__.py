"""
The few functions that models need and NumPy lacks, each a rule with its best saved form. There are no layer classes.

A model is a function of its parameters, any container of arrays; `ebbtide.ravel_tree` makes that one vector for
`ebbtide.optimize`.
"""

from ebbtide.nn.activations import gelu as gelu
from ebbtide.nn.activations import log_softmax as log_softmax
from ebbtide.nn.activations import relu as relu
from ebbtide.nn.activations import softmax as softmax
from ebbtide.nn.convolution import conv2d as conv2d
from ebbtide.nn.layers import dense as dense
from ebbtide.nn.layers import dropout as dropout
from ebbtide.nn.layers import layer_norm as layer_norm
from ebbtide.nn.losses import cross_entropy as cross_entropy
from ebbtide.nn.parameters import load_parameters as load_parameters
from ebbtide.nn.parameters import save_parameters as save_parameters
from ebbtide.nn.pooling import max_pool2d as max_pool2d

__all__ = [
    "conv2d",
    "cross_entropy",
    "dense",
    "dropout",
    "gelu",
    "layer_norm",
    "load_parameters",
    "log_softmax",
    "max_pool2d",
    "relu",
    "save_parameters",
    "softmax",
]
