"""Functions of torch tensors that Ebbtide differentiates; needs the extra `torch`."""

from importlib.util import find_spec

if find_spec("torch") is None:
    raise ModuleNotFoundError('ebbtide.torch needs torch: pip install "ebbtide[torch]"', name="torch")

from ebbtide.torch.function import function as function

__all__ = ["function"]
