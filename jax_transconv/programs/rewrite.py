"""`accelerate`: a traced program with its transposed convolutions exchanged for ours.

A jaxpr is data. Each equation that is ours is exchanged for a call of a small program
with the same operands and results; each that contains one, in whatever parameter holds
a jaxpr, gets that jaxpr rewritten; every other stays as it is. JAX evaluates the
result.

Two kinds of equation hold derivative rules beside their jaxpr: the calls of
`jax.custom_vjp` and `jax.custom_jvp`. They are built anew, with the old call's own
derivatives, taken by `jax.vjp` and `jax.jvp` and rewritten in turn, as their rules.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import jax
import jax.core
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from jax.extend.core import primitives as lax_primitives

from jax_transconv import plan
from jax_transconv.programs.convs import Conv, is_candidate, recognise

__all__ = ["accelerate", "exchanged", "subprograms", "trace"]

F = TypeVar("F", bound=Callable[..., Any])


def accelerate(fn: F, *, backend: str = "auto") -> F:
    """The same function, with its transposed convolutions on our kernels.

    `fn` is traced at each call, as by `jax.jit`. Wherever XLA's general convolution
    runs over a stretched input (`lhs_dilation`), in `jax.lax.conv_transpose`, in the
    layers of any library, or as the input gradient of a strided convolution or the
    weight gradient of a transposed one, `conv_transpose2d` or its weight gradient takes
    its place: inside of `jax.jit`, `scan`, `cond`, `while_loop`, `jax.checkpoint`,
    `jax.custom_vjp` and `jax.custom_jvp`, too. Nothing is patched, nothing outside of
    `fn` changes, and what has no equal here is left alone; `doctor` lists both.

    It composes with `jax.grad`, `jax.jvp`, `jax.vmap` and `jax.jit`. Put `jax.jit`
    outside, so that tracing happens once. Differentiating the accelerated function,
    ``jax.grad(accelerate(loss))``, is best; ``accelerate(jax.grad(loss))`` finds the
    gradients that JAX has derived.

    The rules of a `jax.custom_vjp` or `jax.custom_jvp` run when the result is
    differentiated, after `fn` was traced, as with ``jax.grad(jax.jit(fn))``. So they
    may use their operands, and arrays that `fn` does not compute or receive; whatever
    else the differentiated function needs has to be one of its arguments. For a rule
    that is not written so there is ``accelerate(jax.grad(loss))``.

    Args:
        fn: a pure function. Arrays among its arguments are traced; whatever else is in
            them stays what it is.
        backend: as in `conv_transpose2d`.

    Returns:
        A function with the arguments and the results of `fn`, and its numbers to
        rounding.

    Raises:
        ValueError: if `fn` changes an argument, such as a Flax NNX module, in place:
            the change would be lost; or if a derivative rule in it needs an array that
            was there only while `fn` was traced.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> def up(x, kernel):
        ...     return jax.lax.conv_transpose(x, kernel, (2, 2), "SAME")
        >>> x, kernel = jnp.ones((1, 4, 4, 3)), jnp.ones((3, 3, 3, 8))
        >>> bool(jnp.allclose(accelerate(up)(x, kernel), up(x, kernel), rtol=1e-3))
        True
    """
    plan.check_backend(backend)

    @functools.wraps(fn)
    def accelerated(*args: Any, **kwargs: Any) -> Any:
        program, arrays, out_tree = trace(fn, args, kwargs)
        program = _Rewriter(backend).closed(program)
        with _rules_explained():
            out = jax.core.eval_jaxpr(program.jaxpr, program.consts, *arrays)
        # A constant that is returned comes out as the number that it is in the program.
        return jax.tree.unflatten(out_tree, [jnp.asarray(a) for a in out])

    return accelerated  # type: ignore[return-value]


@contextlib.contextmanager
def _rules_explained() -> Iterator[None]:
    """JAX's words on an array that outlived its trace, in terms of what to change.

    It finds out late. Inside of a `jax.jit` it is only when that is compiled, so that
    its own words remain there.
    """
    try:
        yield
    except (TypeError, jax.errors.UnexpectedTracerError) as error:
        if isinstance(error, TypeError) and "No constant handler" not in str(error):
            raise
        raise ValueError(
            "accelerate: the rule of a jax.custom_vjp or jax.custom_jvp in fn uses an "
            "array that was there only while fn was traced.\n"
            "Resolution: make the array an argument of that function, or, since rules "
            "run while a derivative is traced, accelerate the derivative: "
            "accelerate(jax.grad(fn))."
        ) from error


def trace(fn: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, list, Any]:
    """Traces a call over the arrays (or `jax.ShapeDtypeStruct`s) in its arguments.

    Returns:
        The closed jaxpr, the arrays in its order, and the tree of the results.
    """
    leaves, tree = jax.tree.flatten((args, kwargs))
    traced = [
        i
        for i, leaf in enumerate(leaves)
        if isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct))
    ]
    out_tree: Any = None

    def flat(*arrays: Any) -> list:
        nonlocal out_tree
        full = list(leaves)
        for i, array in zip(traced, arrays, strict=True):
            full[i] = array
        call_args, call_kwargs = jax.tree.unflatten(tree, full)
        objects = _objects((call_args, call_kwargs))
        before = [jax.tree.leaves(o) for o in objects]
        out, out_tree = jax.tree.flatten(fn(*call_args, **call_kwargs))
        for o, old in zip(objects, before, strict=True):
            new = jax.tree.leaves(o)
            if len(new) != len(old) or any(
                a is not b for a, b in zip(old, new, strict=True)
            ):
                raise ValueError(
                    "accelerate: fn must not change its arguments, but it changed a "
                    f"{type(o).__name__}, which would be lost.\n"
                    "Resolution: accelerate a pure function, and return what changes; "
                    "for Flax NNX, use nnx.split outside and nnx.merge inside."
                )
        return out

    arrays = [leaves[i] for i in traced]
    return jax.make_jaxpr(flat)(*arrays), arrays, out_tree


def _objects(args: Any) -> list[Any]:
    """Nodes of which a function may change its own copy: neither containers nor arrays.

    A mapping of another kind holds state that is passed on purpose.
    """

    def is_object(node: Any) -> bool:
        return not isinstance(node, (dict, list, tuple, type(None)))

    nodes = jax.tree.leaves(args, is_leaf=is_object)
    return [n for n in nodes if not isinstance(n, (Mapping, jax.Array))]


def subprograms(eqn: Any) -> list[Any]:
    """Every jaxpr in the parameters of an equation."""
    found = []
    for value in eqn.params.values():
        items = value if isinstance(value, (tuple, list)) else (value,)
        for item in items:
            if isinstance(item, jex.ClosedJaxpr):
                found.append(item.jaxpr)
            elif isinstance(item, jex.Jaxpr):
                found.append(item)
    return found


class _Rewriter:
    """Rewrites one program; a jaxpr that occurs twice is rewritten once, and shared."""

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._done: dict[int, tuple[Any, Any]] = {}  # keeps the old alive, for its id

    def closed(self, program: Any) -> Any:
        """A rewritten closed jaxpr."""
        return self._once(
            program, lambda: program.replace(jaxpr=self.jaxpr(program.jaxpr))
        )

    def jaxpr(self, jaxpr: Any) -> Any:
        """A rewritten open jaxpr."""

        def rewritten() -> Any:
            eqns = [self._eqn(e) for e in jaxpr.eqns]
            if all(a is b for a, b in zip(eqns, jaxpr.eqns, strict=True)):
                return jaxpr
            return jaxpr.replace(eqns=eqns)

        return self._once(jaxpr, rewritten)

    def _once(self, old: Any, rewritten: Callable[[], Any]) -> Any:
        if id(old) not in self._done:
            self._done[id(old)] = (old, rewritten())
        return self._done[id(old)][1]

    def _eqn(self, eqn: Any) -> Any:
        if is_candidate(eqn):
            return exchanged(eqn, recognise(eqn, self._backend)) or eqn
        params = {name: self._param(value) for name, value in eqn.params.items()}
        if all(params[name] is eqn.params[name] for name in params):
            return eqn
        if eqn.primitive is lax_primitives.custom_vjp_call_p:
            return _calling(self._custom_vjp(eqn, params["call_jaxpr"]), eqn) or eqn
        if eqn.primitive is lax_primitives.custom_jvp_call_p:
            return _calling(self._custom_jvp(eqn, params["call_jaxpr"]), eqn) or eqn
        return eqn.replace(params=params)

    def _param(self, value: Any) -> Any:
        if isinstance(value, jex.ClosedJaxpr):
            return self.closed(value)
        if isinstance(value, jex.Jaxpr):
            return self.jaxpr(value)
        if isinstance(value, (tuple, list)):
            items = [self._param(item) for item in value]
            if all(a is b for a, b in zip(items, value, strict=True)):
                return value
            named = hasattr(value, "_fields")
            return type(value)(*items) if named else type(value)(items)
        return value

    def _custom_vjp(self, eqn: Any, program: Any) -> Callable[..., Any]:
        old = _function_of(eqn)
        # The first operands are what the function closed over: its rules know nothing
        # of them, and JAX refuses derivatives with respect to them.
        count = eqn.params.get("num_consts", 0)

        @jax.custom_vjp
        def call(*operands: Any) -> Any:
            return jax.core.eval_jaxpr(program.jaxpr, program.consts, *operands)

        def forward(*operands: Any) -> Any:
            values = [o.value for o in operands]
            # With all of them, JAX raises its own error.
            fixed = 0 if any(o.perturbed for o in operands[:count]) else count
            pulled = functools.partial(jax.vjp, functools.partial(old, *values[:fixed]))
            return accelerate(pulled, backend=self._backend)(*values[fixed:])

        def backward(pull: Any, cotangents: Any) -> Any:
            def apply(pull: Any, cotangents: Any) -> Any:
                return [_or_none(g) for g in pull(cotangents)]

            cotangents = [_array(c) for c in cotangents]
            gradients = accelerate(apply, backend=self._backend)(pull, cotangents)
            return (*[None] * count, *gradients)

        call.defvjp(forward, backward, symbolic_zeros=True)
        return call

    def _custom_jvp(self, eqn: Any, program: Any) -> Callable[..., Any]:
        old = _function_of(eqn)

        @jax.custom_jvp
        def call(*operands: Any) -> Any:
            return jax.core.eval_jaxpr(program.jaxpr, program.consts, *operands)

        @call.defjvp
        def rule(primals: Any, tangents: Any) -> Any:
            return accelerate(functools.partial(jax.jvp, old), backend=self._backend)(
                primals, tangents
            )

        return call


def _array(cotangent: Any) -> Any:
    """A cotangent that may be a symbolic zero, as an array."""
    if not isinstance(cotangent, jax.custom_derivatives.SymbolicZero):
        return cotangent
    zero: Any = cotangent  # its attributes are not typed
    if zero.dtype == jax.dtypes.float0:
        return np.zeros(zero.shape, jax.dtypes.float0)
    return jnp.zeros(zero.shape, zero.dtype)


def _or_none(gradient: Any) -> Any:
    """What a rule of `jax.custom_vjp` says of an operand that is no real number."""
    return None if gradient.dtype == jax.dtypes.float0 else gradient


def _function_of(eqn: Any) -> Callable[..., list[Any]]:
    """One equation as a function of its operands, derivative rules and all."""
    avals = [v.aval for v in eqn.invars]
    shell = jax.make_jaxpr(lambda *operands: operands)(*avals).jaxpr
    # Variables of its own: one that stood for two operands would get both derivatives.
    alone = shell.replace(
        eqns=[eqn.replace(invars=shell.invars)],
        outvars=eqn.outvars,
        effects=eqn.effects,
    )
    return lambda *operands: jax.core.eval_jaxpr(alone, (), *operands)


def exchanged(eqn: Any, conv: Conv | str) -> Any:
    """The equation that takes the place of a convolution, or None if it stays."""
    return _calling(conv.run, eqn) if isinstance(conv, Conv) else None


def _calling(run: Callable[..., Any], eqn: Any) -> Any:
    """A call of `run` in place of an equation, or None if the types would differ.

    They do where an array carries more than shape and dtype, such as the mesh axes
    along which it varies inside of `jax.shard_map`.
    """
    avals = [v.aval for v in eqn.invars]
    # The context has the mesh that the equation was traced under, for one.
    with eqn.ctx.manager, jax.disable_jit(False):
        (call,) = jax.make_jaxpr(jax.jit(run))(*avals).eqns
    pairs = zip(call.outvars, eqn.outvars, strict=True)
    if not all(_is_type(new.aval, old.aval) for new, old in pairs):
        return None
    return eqn.replace(primitive=call.primitive, params=call.params)


def _is_type(new: Any, old: Any) -> bool:
    """Whether types agree in all but the mesh that an unsharded array names."""
    laid_out = tuple(new.sharding.spec) == tuple(old.sharding.spec)
    return laid_out and new.update(sharding=old.sharding) == old
