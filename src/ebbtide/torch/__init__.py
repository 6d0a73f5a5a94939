"""Functions of torch tensors that Ebbtide differentiates; needs the extra `torch`."""

from ebbtide.torch.function import function as function

__all__ = ["function"]
