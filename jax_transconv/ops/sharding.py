"""More than one device: how a pass is cut, and what its shards exchange.

Each axis of the arrays is a factor: batch, groups, input and output channels of a
group, height and width. Arrays that share a factor are cut alike along it. A factor
that a pass sums over costs one all-reduce of the result. Height and width exchange
halos with their neighbours, where a shard of the output is just the stride times a
shard of the input; otherwise, and where a halo is larger than a shard, they are
gathered. What a halo adds to a shard's result is computed apart, in a few rows, so
that no image is copied to have the halo beside it.

Under `jax.jit` the partitioner of XLA asks for this (`partitioned`). Inside
`jax.shard_map` the caller has cut the arrays, and what remains is their type
(`vary_alike`).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.experimental.xla_metadata import set_xla_metadata
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jax_transconv.spec import Geometry, Spec

__all__ = ["describe", "output_sharding", "partitioned", "request", "vary_alike"]

# The arrays of each pass, by role: operands, then results. Roles are those of the
# forward pass, so that dy has the role of y. A bias comes last, if there is one.
_ROLES = {
    "forward": (("x", "w", "b"), ("y",)),
    "grad_input": (("y", "w"), ("x",)),
    "grad_weight": (("x", "y"), ("w", "b")),
}
_NAMES = {
    "n": "batch",
    "g": "groups",
    "i": "input channels",
    "o": "output channels",
    "h": "height",
    "v": "width",
    "r": "kernel height",
    "s": "kernel width",
}
_HEIGHT, _WIDTH = "h", "v"


# -- inside shard_map --


def vary_alike(arrays: Sequence[Any]) -> tuple[Any, ...]:
    """Casts arrays to vary over the same manual axes: the transpose sums over them."""
    varying = [jax.typeof(a).manual_axis_type.varying for a in arrays]
    union = frozenset().union(*varying)
    return tuple(
        lax.pcast(a, tuple(sorted(union - v)), to="varying") if union - v else a
        for a, v in zip(arrays, varying, strict=True)
    )


# -- on an explicit mesh --


def output_sharding(spec: Spec, x: Any, w: Any) -> NamedSharding | None:
    """Sharding of y in its type, or None where no axis of the mesh is explicit."""
    mesh = jax.typeof(x).sharding.mesh
    if not mesh.explicit_axes:
        mesh = jax.typeof(w).sharding.mesh
    if not mesh.explicit_axes:
        return None
    specs = {"x": jax.typeof(x).sharding.spec, "w": jax.typeof(w).sharding.spec}
    cut = _cut("forward", spec, mesh.shape, specs)
    return NamedSharding(mesh, cut.partition_spec("y"))


# -- under jit --


@functools.cache
def _devices_wanted() -> Any:
    """A program that is never run; at its sight JAX makes the devices known."""

    @custom_partitioning
    def nothing(a: Any) -> Any:
        return a

    nothing.def_partition(lambda *_: None, sharding_rule="i -> i")
    return jax.make_jaxpr(nothing)(jax.ShapeDtypeStruct((1,), jnp.dtype("float32")))


def request() -> Any:
    """What a primitive carries so that XLA partitions it, or None inside shard_map.

    JAX tells a lowering rule its devices only if it sees a `custom_partitioning` in the
    program, and ours appears in the lowering: so each primitive carries one to be seen.
    """
    return None if jax.sharding.get_abstract_mesh().manual_axes else _devices_wanted()


def partitioned(
    pass_name: str, spec: Spec, run: Callable[..., Any], bias: bool
) -> Callable[..., Any]:
    """A pass that XLA may cut along its factors.

    Args:
        pass_name: "forward", "grad_input" or "grad_weight".
        spec: the whole problem.
        run: takes a geometry and the operands, whole or one shard of each.
        bias: whether a bias, or its gradient, takes part.

    Returns:
        A function of the operands.
    """
    operands, results = (
        tuple(r for r in roles if bias or r != "b") for roles in _ROLES[pass_name]
    )
    rule, kinds, sizes = _rule(spec, operands, results)
    function = custom_partitioning(functools.partial(run, spec.geometry))
    options: dict[str, Any] = {**kinds, **sizes}
    function.def_partition(
        functools.partial(_partition, pass_name, spec, run, operands, results),
        sharding_rule=rule,
        decode_shardings=False,
        **options,
    )

    def named(*operands: Any) -> Any:
        # The text of a program must tell one geometry from another, and JAX can be told
        # to leave the callback, which knows it, out of its compilation cache's key.
        name = f"{pass_name} {spec.geometry}"
        return set_xla_metadata(function(*operands), jax_transconv=name)

    return named


def describe(spec: Spec, x: Any, w: Any) -> tuple[str, ...]:
    """How the forward pass is cut for arrays (or their shapes) with these shardings."""
    found = {
        role: sharding
        for role, sharding in (("x", _named(x)), ("w", _named(w)))
        if sharding is not None
    }
    if not found:
        return ()
    mesh = next(iter(found.values())).mesh
    specs = {role: sharding.spec for role, sharding in found.items()}
    return _cut("forward", spec, mesh.shape, specs).notes


def _named(array: Any) -> NamedSharding | None:
    sharding = getattr(array, "sharding", None)
    return sharding if isinstance(sharding, NamedSharding) else None


# -- the factors of a problem --


def _is_scaled(spec: Spec, axis: int) -> bool:
    """Whether y has stride positions for every one of x, as halos need it."""
    return spec.out_size[axis] == spec.in_size[axis] * spec.geometry.stride[axis]


def _factors(spec: Spec) -> dict[str, tuple[tuple[str, ...], ...]]:
    """For each role, the factors of each axis, major first."""
    g = spec.geometry
    inputs, outputs = ("i",), ("o",)
    if g.groups > 1:
        inputs = ("g", "i") if spec.in_per_group > 1 else ("g",)
        outputs = ("g", "o") if spec.out_per_group > 1 else ("g",)
    size_x = ((_HEIGHT,), (_WIDTH,))
    size_y = tuple(
        own if _is_scaled(spec, axis) else other
        for axis, (own, other) in enumerate(zip(size_x, (("p",), ("q",)), strict=True))
    )
    return {
        "x": g.image_shape(("n",), inputs, size_x),
        "y": g.image_shape(("n",), outputs, size_y),
        "w": (inputs, ("o",), ("r",), ("s",)),
        "b": (outputs,),
    }


def _fixed(spec: Spec) -> frozenset[str]:
    """The factors that are never cut."""
    fixed = {"r", "s", "p", "q"}
    if spec.geometry.groups > 1:
        fixed |= {"i", "o"}  # not the leading factor of their axis
    for axis, factor in enumerate((_HEIGHT, _WIDTH)):
        if not _is_scaled(spec, axis):
            fixed.add(factor)
    return frozenset(fixed)


def _summed(spec: Spec, pass_name: str) -> frozenset[str]:
    """The factors that a pass sums over."""
    factors = _factors(spec)
    before, after = (
        {f for role in roles for axis in factors[role] for f in axis}
        for roles in _ROLES[pass_name]
    )
    return frozenset(before - after - _fixed(spec))


def _rule(
    spec: Spec, operands: Sequence[str], results: Sequence[str]
) -> tuple[str, dict[str, tuple[str, ...]], dict[str, int]]:
    """The problem in the notation of Shardy, the kinds of factors, and their sizes."""
    factors = _factors(spec)

    def axis(names: tuple[str, ...]) -> str:
        return names[0] if len(names) == 1 else f"({' '.join(names)})"

    def arrays(roles: Sequence[str]) -> str:
        return ", ".join(" ".join(map(axis, factors[role])) for role in roles)

    before, after = (
        list(dict.fromkeys(f for role in roles for axis in factors[role] for f in axis))
        for roles in (operands, results)
    )
    order = list(dict.fromkeys(before + after))
    fixed = _fixed(spec)
    alone = {
        axis[0]
        for role in (*operands, *results)
        for axis in factors[role]
        if len(axis) == 1
    }
    known = {"g": spec.geometry.groups, "i": spec.in_per_group, "o": spec.out_per_group}
    kinds = {
        "reduction_factors": tuple(
            f for f in order if f not in after and f not in fixed
        ),
        "need_replication_factors": tuple(f for f in order if f in fixed),
    }
    sizes = {f: known[f] for f in order if f not in alone}
    return f"{arrays(operands)} -> {arrays(results)}", kinds, sizes


# -- the cut --


def _halos(spec: Spec, pass_name: str, axis: int) -> tuple[int, int]:
    """Rows (or columns) that a shard needs of its neighbours before and after it.

    Of x, an output at j needs (j + lo - d * k) / s; of dy, an input at i needs
    s * i + d * k - lo. With as many outputs as s times the inputs, hi is what is left.
    """
    lo, hi = spec.geometry.crop[axis]
    if pass_name == "grad_input":
        return max(lo, 0), max(hi, 0)
    s = spec.geometry.stride[axis]
    return max(-(-hi // s), 0), max(-(-lo // s), 0)


@dataclasses.dataclass(frozen=True)
class _Cut:
    """Which mesh axes cut which factor.

    Attributes:
        factors: as `_factors` has them.
        axes: the mesh axes of every factor that is cut.
        notes: one line for every factor that is cut, or was asked to be and is not.
    """

    factors: Mapping[str, tuple[tuple[str, ...], ...]]
    axes: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...]

    def partition_spec(self, role: str) -> P:
        return P(*(self.axes.get(names[0]) for names in self.factors[role]))


def _cut(
    pass_name: str,
    spec: Spec,
    mesh: Mapping[str, int],
    asked: Mapping[str, P],
) -> _Cut:
    """Settles the cut of one pass.

    Args:
        pass_name: "forward", "grad_input" or "grad_weight".
        spec: the whole problem.
        mesh: size of every mesh axis.
        asked: partition specs by role; the first that cuts a factor counts.
    """
    factors = _factors(spec)
    axes: dict[str, tuple[str, ...]] = {}
    notes: dict[str, str] = {}
    for role, partition_spec in asked.items():
        for names, entry in zip(factors[role], partition_spec, strict=False):
            factor = {"p": _HEIGHT, "q": _WIDTH}.get(names[0], names[0])
            wanted = (entry,) if isinstance(entry, str) else tuple(entry or ())
            taken = {a for used in axes.values() for a in used}
            wanted = tuple(a for a in wanted if a not in taken and mesh[a] > 1)
            if not wanted or factor in axes:
                continue
            count = math.prod(mesh[a] for a in wanted)
            where = f"{_NAMES[factor]} over {' and '.join(wanted)}"
            reason = _refusal(pass_name, spec, factor, count)
            if reason is None:
                axes[factor] = wanted
                notes[factor] = where + _cost(pass_name, spec, factor)
            else:
                notes.setdefault(factor, f"{where}: gathered, {reason}")
    return _Cut(factors, axes, tuple(notes.values()))


def _refusal(pass_name: str, spec: Spec, factor: str, count: int) -> str | None:
    """Why a factor can't be cut into `count` shards, or None."""
    g = spec.geometry
    if factor in (_HEIGHT, _WIDTH):
        axis = (_HEIGHT, _WIDTH).index(factor)
        n, out = spec.in_size[axis], spec.out_size[axis]
        if not _is_scaled(spec, axis):
            return f"an output of {out} is not the stride {g.stride[axis]} times {n}"
        if n % count:
            return f"{count} devices do not divide {n}"
        each = n // count if pass_name != "grad_input" else out // count
        halo = max(_halos(spec, pass_name, axis))
        if halo > each:
            return f"a shard of {each} is smaller than its halo of {halo}"
        return None
    if factor in ("r", "s"):
        return "a kernel is never cut"
    if factor in _fixed(spec):
        return "channels are cut in whole groups"
    sizes = {
        "n": spec.batch,
        "g": g.groups,
        "i": spec.in_per_group,
        "o": spec.out_per_group,
    }
    return (
        f"{count} devices do not divide {sizes[factor]}" * bool(sizes[factor] % count)
        or None
    )


def _cost(pass_name: str, spec: Spec, factor: str) -> str:
    if factor in (_HEIGHT, _WIDTH):
        before, after = _halos(spec, pass_name, (_HEIGHT, _WIDTH).index(factor))
        return f": halos of {before} and {after}"
    return ": summed" if factor in _summed(spec, pass_name) else ""


def _partition(
    pass_name: str,
    spec: Spec,
    run: Callable[..., Any],
    before: Sequence[str],
    after: Sequence[str],
    mesh: Any,
    operands: Any,
    results: Any,
) -> Any:
    """XLA's question: the program of one shard, and the shardings that it wants."""
    arrays = (*operands, *jax.tree.leaves(results))
    asked = {
        role: _decode(array.sharding, array.ndim, mesh)
        for role, array in zip((*before, *after), arrays, strict=True)
    }
    cut = _cut(pass_name, spec, mesh.shape, asked)
    of = {role: NamedSharding(mesh, cut.partition_spec(role)) for role in asked}

    def shard(*operands: Any) -> Any:
        # The caller's mesh may be explicit, but the types of a shard know no mesh.
        with jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
            return _shard(pass_name, spec, run, cut, mesh.shape, *operands)

    out = jax.tree.unflatten(jax.tree.structure(results), [of[r] for r in after])
    return mesh, shard, out, tuple(of[r] for r in before)


def _decode(sharding: Any, rank: int, mesh: Any) -> P:
    """The mesh axes that cut each axis of an array.

    XLA may split a mesh axis over two factors. JAX's own decoding fails there; here
    such an axis counts as not cut.
    """
    shape = (mesh.size,) * rank  # that any cut divides
    index = sharding.devices_indices_map(shape)
    entries = []
    for axis in range(rank):
        starts = np.vectorize(lambda d, a=axis: index[d][a].start or 0)(mesh.devices)
        # Where one step along each mesh axis leads, and whether all steps lead so far.
        steps = [
            starts.take(min(1, n - 1), a).flat[0] for a, n in enumerate(starts.shape)
        ]
        linear = np.tensordot(steps, np.indices(starts.shape), 1)
        order = sorted(range(starts.ndim), key=lambda a: -steps[a])
        names = tuple(mesh.axis_names[a] for a in order if steps[a])
        entries.append(names if names and (linear == starts).all() else None)
    return P(*entries)


def _shard(
    pass_name: str,
    spec: Spec,
    run: Callable[..., Any],
    cut: _Cut,
    mesh: Mapping[str, int],
    *operands: Any,
) -> Any:
    """One shard of a pass: exchange halos, compute, sum."""
    first, *rest = operands  # the image, of which the halos are
    geometry = spec.geometry
    if "g" in cut.axes:
        count = math.prod(mesh[a] for a in cut.axes["g"])
        geometry = geometry.with_groups(geometry.groups // count)
    summed = tuple(
        a for f, axes in cut.axes.items() if f in _summed(spec, pass_name) for a in axes
    )
    if pass_name == "forward" and summed and len(rest) == 2:
        w, b = rest
        rest = [w, jnp.where(lax.axis_index(summed) == 0, b, jnp.zeros_like(b))]
    spatial = [a for a, factor in enumerate((_HEIGHT, _WIDTH)) if factor in cut.axes]
    # Strips round twice, which 16-bit results would show.
    apart = spatial[:1] if spec.itemsize > 2 else []
    for axis in spatial[len(apart) :]:  # corners too, which the other axis passes on
        halos = _halos(spec, pass_name, axis)
        axes = cut.axes[(_HEIGHT, _WIDTH)[axis]]
        first = _with_halos(first, geometry.spatial_axes[axis], halos, axes, mesh)
        geometry = _crop_halos(geometry, pass_name, axis, halos)
    out = run(geometry, first, *rest)
    for axis in apart:
        axes = cut.axes[(_HEIGHT, _WIDTH)[axis]]
        for strip in _strips(pass_name, geometry, axis):
            out = strip.add(pass_name, run, axes, mesh, out, first, *rest)
    return lax.psum(out, summed) if summed else out


@dataclasses.dataclass(frozen=True)
class _Strip:
    """What a shard's halo on one side adds to the shard's own result.

    A pass is linear in the image, so the halo is computed apart, and no copy of the
    shard has to be made to put it beside.

    Attributes:
        geometry: of the strip.
        dim: the axis of the arrays.
        halo: extent of the strip in the image that is exchanged.
        other: its extent in the result or, in grad_weight, in the second image.
        at_start: whether the halo lies before the shard; else behind it.
    """

    geometry: Geometry
    dim: int
    halo: int
    other: int
    at_start: bool

    def add(
        self,
        pass_name: str,
        run: Callable[..., Any],
        axes: tuple[str, ...],
        mesh: Mapping[str, int],
        out: Any,
        image: Any,
        second: Any,
        *bias: Any,
    ) -> Any:
        """The result with the part of this strip in it; it has the bias already."""
        del bias
        halo = _neighbour(image, self.dim, self.halo, axes, mesh, self.at_start)
        if pass_name == "grad_weight":
            size = second.shape[self.dim]
            start = 0 if self.at_start else size - self.other
            own = lax.slice_in_dim(second, start, start + self.other, axis=self.dim)
            dw, *db = out
            return [dw + run(self.geometry, halo, own)[0], *db]
        part = run(self.geometry, halo, second)
        start = 0 if self.at_start else out.shape[self.dim] - self.other
        own = lax.slice_in_dim(out, start, start + self.other, axis=self.dim)
        return lax.dynamic_update_slice_in_dim(out, own + part, start, axis=self.dim)


def _strips(pass_name: str, geometry: Geometry, axis: int) -> list[_Strip]:
    """The strips of an axis whose output is the stride times the input.

    Then the first `lo` positions that the crop takes away from a shard are the last
    ones of the shard before it, and the last `hi` the first ones of the next: an
    overlap of lo (or hi) positions of y and as many of x as reach them.
    """
    (lo, hi), s = geometry.crop[axis], geometry.stride[axis]
    strips = []
    for y, low in ((lo, True), (hi, False)):
        if y <= 0:
            continue
        x = -(-y // s)
        crop = list(geometry.crop)
        crop[axis] = (0, hi + s * x) if low else (lo + s * x, 0)
        inner = dataclasses.replace(geometry, crop=(crop[0], crop[1]))
        halo, other = (y, x) if pass_name == "grad_input" else (x, y)
        at_start = low if pass_name == "grad_input" else not low
        strips.append(_Strip(inner, geometry.spatial_axes[axis], halo, other, at_start))
    return strips


def _neighbour(
    a: Any,
    dim: int,
    size: int,
    axes: tuple[str, ...],
    mesh: Mapping[str, int],
    before: bool,
) -> Any:
    """The neighbour's positions next to this shard; zeros beyond the image."""
    count = math.prod(mesh[axis] for axis in axes)
    n = a.shape[dim]
    if before:
        end = lax.slice_in_dim(a, n - size, n, axis=dim)
        return lax.ppermute(end, axes, [(p, p + 1) for p in range(count - 1)])
    start = lax.slice_in_dim(a, 0, size, axis=dim)
    return lax.ppermute(start, axes, [(p + 1, p) for p in range(count - 1)])


def _with_halos(
    a: Any,
    dim: int,
    halos: tuple[int, int],
    axes: tuple[str, ...],
    mesh: Mapping[str, int],
) -> Any:
    """A shard between the ends of its neighbours."""
    before, after = halos
    parts = [a]
    if before:
        parts.insert(0, _neighbour(a, dim, before, axes, mesh, True))
    if after:
        parts.append(_neighbour(a, dim, after, axes, mesh, False))
    return lax.concatenate(parts, dim)


def _crop_halos(
    geometry: Geometry, pass_name: str, axis: int, halos: tuple[int, int]
) -> Geometry:
    """The geometry of a shard with halos: they are what it crops, or has to crop."""
    scale = -1 if pass_name == "grad_input" else geometry.stride[axis]
    crop = list(geometry.crop)
    (lo, hi), (before, after) = crop[axis], halos
    crop[axis] = (lo + scale * before, hi + scale * after)
    return dataclasses.replace(geometry, crop=(crop[0], crop[1]))
