"""
`function`: a function of NumPy arrays as one operation of torch's graph, reversed by Ebbtide.

torch's engine keeps the arguments of a call until the call returns, as Python does. So nothing large is an argument:
saved values are in Ebbtide's tape, cotangents come in a list that is emptied, and each of them dies at its last use.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import partial, wraps
from types import MappingProxyType
from typing import Any, final

import numpy as np
import optree

from ebbtide.arrays.containers import flatten, output_types, unflatten
from ebbtide.budget import Budget
from ebbtide.errors import TraceError
from ebbtide.program.evaluate import evaluate
from ebbtide.program.program import Program
from ebbtide.program.tracing import name_of
from ebbtide.torch.sharing import array_of, cotangent_of, gradient_of, tensors_of
from ebbtide.transforms.pullback import Pullback, vjp

# By name: without the extra, checkers would take this package for torch.
torch: Any = importlib.import_module("torch")


def function(
    f: Callable[..., Any] | Program, *, budget: Budget | None = None, create_graph: bool = False
) -> Callable[..., Any]:
    """
    Return *f* as a function of torch tensors, whose gradient is Ebbtide's.

    Args:
        f: A function of NumPy arrays and containers of them, plain or jitted; or a program, which takes one array for
            each of its inputs and returns one array or a list.
        budget: The bytes that a forward and a reverse run may take; None for no bound.
        create_graph: Whether torch may be asked for gradients with `create_graph=True`, to differentiate these again:
            *f* is then run once more.

    Returns:
        A function that takes tensors on the CPU wherever *f* takes arrays, and whatever else *f* takes; it returns
        tensors for arrays and numbers, of the same dtypes. Tensors that require a gradient are differentiated, where
        torch records; without such a tensor *f* runs alone, and nothing is kept. The gradient of a complex tensor
        is torch's: the conjugate of Ebbtide's.

    Raises:
        TypeError: A tensor cannot be seen as a NumPy array: it is on another device, sparse, or of a dtype such as
            bfloat16; or an output has no torch dtype.
        TraceError: A transform of `torch.func` or forward mode is at work, or a gradient is asked for with
            `create_graph=True` without this one's.
        MutationError: In the reverse run: a tensor that it needs was changed after the forward run.
        ReleasedValueError: In a second reverse run, if the first was not called with `retain_graph=True`.

    Memory:
        Tensors and arrays share their memory, but those that NumPy or torch cannot describe (conjugated lazily,
        reversed, read-only), and outputs that overlap an argument, which are copied. What the reverse run needs is
        kept until that has passed, or the last output is dropped; with *create_graph* the arguments, too.

    Example:
        >>> import numpy as np
        >>> import torch
        >>> energy = function(lambda u: np.sum(u**2))
        >>> u = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> torch.log(energy(3 * u)).backward()
        >>> u.grad
        tensor([0.4000, 0.8000])
    """
    of_arrays = _of_inputs(f) if isinstance(f, Program) else f
    name = name_of(of_arrays)

    @wraps(of_arrays)
    def on_tensors(*args: Any, **kwargs: Any) -> Any:
        call = _Call(of_arrays, name, args, kwargs, budget, create_graph)
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in call.tensors):
            results = _Reversible.apply(call, *call.tensors)
        else:
            results = tensors_of(call.run(), call.arrays(), name)
        return unflatten(call.results, results)

    return on_tensors


def _of_inputs(program: Program) -> Callable[..., Any]:
    """Return a program as a function of its inputs."""

    def run(*inputs: Any) -> Any:
        if len(inputs) != len(program.inputs):
            raise TypeError(
                f"The program {program.name} takes {len(program.inputs)} arrays, "
                f"{', '.join([variable.name for variable in program.inputs])}, and was given {len(inputs)}."
            )
        outputs = evaluate(program, inputs)
        return outputs[0] if len(outputs) == 1 else outputs

    run.__name__ = run.__qualname__ = program.name
    return run


@final
class _Call:
    """
    A call of a function, with arrays in the place of tensors.

    Args:
        f: The function.
        name: Its name, for messages.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        budget: The bytes that it may take.
        create_graph: Whether its gradients may be differentiated.

    Raises:
        TypeError: A tensor cannot be seen as an array.
        TraceError: Another system is differentiating or batching the tensors.
    """

    __slots__ = ("_leaves", "_structure", "budget", "create_graph", "f", "name", "places", "results", "tensors")

    def __init__(
        self, f: Callable[..., Any], name: str, args: Any, kwargs: Any, budget: Budget | None, create_graph: bool
    ) -> None:
        given: Any = (args, kwargs)
        # As the user gave them: tensors may be vectors of a registered type, of which `flatten` would make arrays.
        self._leaves, self._structure = optree.tree_flatten(given, namespace="ebbtide")
        self.f = f
        self.name = name
        self.budget = budget
        self.create_graph = create_graph
        self.places = [k for k, leaf in enumerate(self._leaves) if isinstance(leaf, torch.Tensor)]
        self.tensors = [self._leaves[k] for k in self.places]
        _refuse_transforms(name, self.tensors)
        for k in self.places:
            self._leaves[k] = array_of(self._leaves[k], f"{name} was given")
        self.results: Any = None

    def arrays(self) -> list[Any]:
        """Return the arrays that share the memory of the tensors."""
        return [self._leaves[k] for k in self.places]

    def run(self, values: Mapping[int, Any] = MappingProxyType({})) -> list[Any]:
        """Return the outputs with other *values* in some places; notes their structure."""
        leaves = [values.get(k, leaf) for k, leaf in enumerate(self._leaves)]
        args, kwargs = unflatten(self._structure, leaves)
        del leaves
        try:
            outputs, self.results = flatten(self.f(*args, **kwargs))
        except ValueError as error:
            if "read-only" in str(error):
                error.add_note(f"{self.name} writes into an argument, which is the caller's tensor: write into a copy.")
            raise
        output_types(outputs, self.results, f"function({self.name})")
        return outputs

    def emptied(self) -> _Call:
        """Let go of tensors and their arrays, and return the call."""
        self.tensors = []
        for k in self.places:
            self._leaves[k] = None
        return self


def _refuse_transforms(name: str, tensors: list[Any]) -> None:
    """Raise if tensors are more than their elements, which would be lost."""
    if torch._C._are_functorch_transforms_active():
        raise TraceError(
            f"{name} is called inside of a transform of torch.func (vmap, grad, jvp, or a batch of cotangents), whose "
            "tensors have no NumPy array. Use backward() or torch.autograd.grad, or transform the NumPy function with "
            "Ebbtide and give the result to ebbtide.torch.function."
        )
    if any(torch.autograd.forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors):
        raise TraceError(
            f"{name} is called with a tensor that has a tangent, and forward mode does not pass from torch to Ebbtide. "
            "Take the tangent of the NumPy function with ebbtide.jvp."
        )


@final
class _Reversible(torch.autograd.Function):
    """One operation of torch's graph: a call whose pullback waits for the cotangents."""

    # The engine then gives the cotangents in a list, and keeps none of them.
    boxed_grads_call = True

    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: Any) -> tuple[Any, ...]:
        """Run the function and record it for the tensors that want a gradient."""
        ctx.set_materialize_grads(False)
        ctx.name, ctx.wanted = call.name, ctx.needs_input_grad[1:]
        arrays = call.arrays()
        values, ctx.pullback = _recorded(call, ctx.wanted, arrays)
        results = tensors_of(values, arrays, call.name)
        depends = zip(results, ctx.pullback.depends, strict=True)
        ctx.mark_non_differentiable(*[result for result, active in depends if not active])
        if call.create_graph:
            ctx.save_for_backward(*tensors)
            ctx.call = call.emptied()
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, cotangents: list[Any]) -> tuple[Any, ...]:
        """Pull the cotangents back, of which there is a list that is emptied."""
        name, wanted = ctx.name, ctx.wanted
        if all(cotangent is None for cotangent in cotangents):
            return (None,) * (1 + len(wanted))
        _refuse_transforms(f"the reverse run of {name}", [x for x in cotangents if x is not None])
        if torch.is_grad_enabled():
            # What is done here is recorded by torch: create_graph=True.
            call = getattr(ctx, "call", None)
            if call is None:
                raise TraceError(
                    f"A gradient of {name} is to be differentiated again (create_graph=True), and what was kept of its "
                    f"run is enough for one derivative. Write ebbtide.torch.function({name}, create_graph=True)."
                )
            reverse = function(partial(_reverse, call, wanted), budget=call.budget, create_graph=True)
            found = reverse(list(ctx.saved_tensors), cotangents)
        else:
            cotangents.reverse()
            given = [cotangent_of(cotangents.pop()) for _ in range(len(cotangents))]
            # Known to the engine only: whether this is the last run backwards through the graph.
            found = list(ctx.pullback.pull(given, retain=torch._C._autograd._get_current_graph_task_keep_graph()))
            found.reverse()
            found = [gradient_of(found.pop()) for _ in range(len(found))]
        gradients = iter(found)
        return None, *[next(gradients) if wants else None for wants in wanted]


def _recorded(call: _Call, wanted: tuple[bool, ...], arrays: list[Any]) -> tuple[list[Any], Pullback]:
    """Return the outputs of a call for *arrays*, and the pullback to those that are *wanted*."""
    places = [place for place, wants in zip(call.places, wanted, strict=True) if wants]
    given = [array for array, wants in zip(arrays, wanted, strict=True) if wants]
    fixed = dict(zip(call.places, arrays, strict=True))
    return vjp(lambda *values: call.run(fixed | dict(zip(places, values, strict=True))), *given, budget=call.budget)


def _reverse(call: _Call, wanted: tuple[bool, ...], arrays: list[Any], cotangents: list[Any]) -> list[Any]:
    """Return the gradients that torch wants as a function of arguments and cotangents, to be differentiated again."""
    _, pullback = _recorded(call, wanted, arrays)
    return [_conjugate(x) for x in pullback.pull([None if g is None else _conjugate(g) for g in cotangents])]


def _conjugate(array: Any) -> Any:
    """Return an array of any trace, conjugated if it is complex."""
    return np.conj(array) if array.dtype.kind == "c" else array
