"""Convolutions of a Relax module that cuDNN runs: found, turned to float16 and channels last, and called by name.

What TVM compiles between them stays in float16 where values only move (concatenation, splits, pooling, resizing), and
in float32 elsewhere: the decoding of a head. `convolve.py` is what is called.

A launch costs 2 us however little it moves, so what can go without one does: convolutions of one input that are alike
run as one, and channels that are split off are not copied but read where they are.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from framefuse.engines.tvm.nodes import again, operator, reads, sizes, without_main
from framefuse.engines.tvm.package import tvm

FUNCTION = "framefuse.tvm.convolve"

GRAIN = 8
"""Channels of which tensor cores take whole groups."""

MOVES = ("relax.concat", "relax.split", "relax.nn.max_pool2d", "relax.image.resize2d")


def off_load(module: Any) -> Any:
    """The module with its convolutions as calls of `FUNCTION`; those that tensor cores cannot take stay.

    None: TVM cannot lay this module out channels last, as where tensors are stacked to five axes.
    """
    passes = tvm().relax.transform
    try:
        module = passes.ConvertLayout({"relax.nn.conv2d": ["NHWC", "OHWI"]})(module)
    except Exception:  # TVM's errors are of a dozen unrelated classes
        return None
    module = tvm().transform.Sequential(
        [passes.FoldConstant(), passes.CanonicalizeBindings(), passes.DeadCodeElimination()]
    )(module)
    return _Rewriter(module).module()


@dataclass(frozen=True, eq=False)
class Found:
    """A convolution with what cuDNN does in the same kernel; `end` is the variable that it all makes."""

    conv: Any
    bias: Any
    activation: str
    residual: Any
    end: Any

    @property
    def count(self) -> int:
        """Output channels."""
        return int(sizes(self.end)[3])

    @property
    def missing(self) -> int:
        """Channels of zeros behind them, which nobody reads."""
        return -self.count % GRAIN


@dataclass(frozen=True, eq=False)
class Group:
    """Convolutions that run as one: their output channels follow each other."""

    members: list[Found]

    @property
    def count(self) -> int:
        return sum(member.count + member.missing for member in self.members)


@dataclass(frozen=True)
class Channels:
    """Channels of a tensor that the new function has: of a variable of the old one, or of what a group puts out."""

    whole: Any
    first: int
    count: int

    @property
    def all(self) -> bool:
        whole = self.whole.count if isinstance(self.whole, Group) else sizes(self.whole)[3]
        return self.count == whole


class _Rewriter:
    def __init__(self, module: Any) -> None:
        self.function = function = module["main"]
        self.bindings = [binding for block in function.body.blocks for binding in block.bindings]
        self.values = {binding.var: binding.value for binding in self.bindings}
        self.readers: dict[Any, list[Any]] = defaultdict(list)
        for binding in self.bindings:
            for name in reads(binding.value):
                self.readers[name].append(binding)
        self.readers[function.body.body].append(None)
        self.found: dict[Any, Found] = {}
        for binding in self.bindings:
            chain = self._chain(binding)
            if chain is not None:
                self.found[chain.end] = chain
        self.grouped = self._grouped()
        self.made: dict[Group, Any] = {}
        self.builder = without_main(module)
        self.full: dict[Any, Any] = {}
        self.half: dict[Any, Any] = {}

    def module(self) -> Any:
        params = list(self.function.params)
        self.full.update({param: param for param in params})
        with self.builder.function("main", params):
            with self.builder.dataflow():
                for binding in self.bindings:  # in order, so that no recursion is deep
                    if binding.var in self.found:
                        self.in_half(binding.var)
                out = self.builder.emit_output(self.in_full(self.function.body.body))
            self.builder.emit_func_output(out)
        return self.builder.finalize()

    def in_full(self, value: Any) -> Any:
        """A value in float32, as the new function has it."""
        relax = tvm().relax
        if isinstance(value, relax.Tuple):
            return relax.Tuple([self.in_full(field) for field in value.fields])
        if not isinstance(value, relax.Var):
            return value
        if value not in self.full:
            if value in self.found:
                made = relax.op.astype(self.in_half(value), "float32")
            else:
                made = self._expectation(self.values[value])
                made = again(self.values[value], self.in_full) if made is None else made
            self.full[value] = self.builder.emit(made)
        return self.full[value]

    def in_half(self, value: Any) -> Any:
        """A value in float16, in memory of its own unless it is all of something."""
        relax = tvm().relax
        if isinstance(value, relax.Tuple):
            return relax.Tuple([self.in_half(field) for field in value.fields])
        if not isinstance(value, relax.Var):
            return value
        if value not in self.half:
            old: Any = self.values.get(value)
            part = self.channels(value)
            if part.whole is not value:
                made = self.whole(part)
                if not part.all:
                    made = relax.op.strided_slice(made, [3], [part.first], [part.first + part.count])
            elif _is_of_channels(old, "relax.concat"):
                made = relax.op.concat(self._joined(old.args[0]), 3)
            elif isinstance(old, relax.TupleGetItem) or operator(old) in MOVES:
                made = again(old, self.in_half)
            else:
                made = relax.op.astype(self.in_full(value), "float16")
            self.half[value] = self.builder.emit(made)
        return self.half[value]

    def _expectation(self, value: Any) -> Any:
        """A softmax whose values are then summed with weights, as heads do that put out a distribution of distances.

        The convolution to one channel that exporters make of it is `sum(w exp(x - max)) / sum(exp(x - max))`: one
        kernel without memory between its parts.
        """
        if operator(value) != "relax.nn.conv2d" or not isinstance(value.args[1], tvm().ir.Constant):
            return None
        weight = value.args[1].value.numpy()
        moved: Any = self.values.get(value.args[0])
        if operator(moved) != "relax.permute_dims" or [int(axis) for axis in moved.attrs.axes] != [0, 2, 3, 1]:
            return None
        soft: Any = self.values.get(moved.args[0])
        if operator(soft) != "relax.nn.softmax" or int(soft.attrs.axis) != 1 or weight.size != weight.shape[3]:
            return None
        weights = tvm().relax.const(weight.reshape(-1).astype("float32"), "float32")
        return self.builder.emit_te(_expectation, self.in_full(soft.args[0]), weights, primfunc_name_hint="expectation")

    def channels(self, value: Any) -> Channels:
        """Where a value is, without a copy."""
        if value in self.grouped:
            return self.grouped[value]
        old = self.values.get(value)
        if isinstance(old, tvm().relax.TupleGetItem):
            split: Any = self.values.get(old.tuple_value)
            if _is_of_channels(split, "relax.split"):
                source = self.channels(split.args[0])
                counts = [int(field.shape[3]) for field in old.tuple_value.ty.fields]
                return Channels(source.whole, source.first + sum(counts[: old.index]), counts[old.index])
        shape = sizes(value) if isinstance(value, tvm().relax.Var) and hasattr(value.ty, "shape") else []
        return Channels(value, 0, shape[3] if len(shape) == 4 else 0)

    def whole(self, part: Channels) -> Any:
        """The tensor that channels are of, in float16."""
        if not isinstance(part.whole, Group):
            return self.in_half(part.whole)
        if part.whole not in self.made:
            self.made[part.whole] = self.builder.emit(self._call(part.whole))
        return self.made[part.whole]

    def _joined(self, fields: Any) -> list[Any]:
        """What a concatenation joins; fields that follow each other and are all of something as that."""
        runs: list[list[tuple[Any, Channels]]] = []
        for field in fields:
            part = self.channels(field)
            last = runs[-1][-1][1] if runs else None
            if last is not None and last.whole == part.whole and last.first + last.count == part.first:
                runs[-1].append((field, part))
            else:
                runs.append([(field, part)])
        joined = []
        for run in runs:
            start = run[0][1]
            part = Channels(start.whole, start.first, sum(part.count for _, part in run))
            joined += [self.whole(part)] if part.all else [self.in_half(field) for field, _ in run]
        return joined

    def _grouped(self) -> dict[Any, Channels]:
        """Where the output of each convolution is."""
        groups: dict[Any, list[Found]] = defaultdict(list)
        for found in self.found.values():
            call = self.values[found.conv]
            geometry = [str(given) for given in (call.attrs.strides, call.attrs.padding, call.attrs.dilation)]
            kernel = call.args[1].value.shape[1:3]
            alone = found if found.residual is not None else None
            groups[call.args[0], str(kernel), *geometry, found.activation, alone].append(found)
        where = {}
        for members in groups.values():
            group, first = Group(members), 0
            for member in members:
                where[member.end] = Channels(group, first, member.count)
                first += member.count + member.missing
        return where

    def _chain(self, binding: Any) -> Found | None:
        """The convolution that a binding makes, and what follows it, if cuDNN can take it."""
        relax = tvm().relax
        call = binding.value
        if (
            operator(call) != "relax.nn.conv2d"
            or call.attrs.groups != 1
            or not isinstance(call.args[1], tvm().ir.Constant)
        ):
            return None
        outputs = int(call.args[1].value.shape[0])
        if outputs < GRAIN:
            return None
        end, bias, activation, residual = binding.var, None, "", None
        after = self._only_reader(end)
        if operator(after) == "relax.add" and isinstance(after.value.args[1], tvm().ir.Constant):
            constant = after.value.args[1].value.numpy()
            if constant.size == outputs and constant.shape[-1] == outputs:
                end, bias = after.var, constant.reshape(-1)
        readers = self.readers[end]
        kinds = sorted(operator(reader) for reader in readers)
        if kinds == ["relax.multiply", "relax.sigmoid"]:
            gate, product = sorted(readers, key=operator, reverse=True)
            if set(reads(product.value)) == {end, gate.var} and self.readers[gate.var] == [product]:
                end, activation = product.var, "silu"
        elif kinds == ["relax.nn.relu"]:
            end, activation = readers[0].var, "relu"
        after = self._only_reader(end)
        if operator(after) == "relax.add":
            others = [argument for argument in after.value.args if not argument.same_as(end)]
            alike = len(others) == 1 and isinstance(others[0], relax.Var) and sizes(others[0]) == sizes(end)
            if alike and not outputs % GRAIN:
                end, residual = after.var, others[0]
        return Found(binding.var, bias, activation, residual, end)

    def _only_reader(self, variable: Any) -> Any:
        readers = self.readers[variable]
        return readers[0] if len(readers) == 1 else None

    def _call(self, group: Group) -> Any:
        import numpy as np

        relax = tvm().relax
        calls = [self.values[member.conv] for member in group.members]
        weights, biases = [], []
        for member, call in zip(group.members, calls, strict=True):
            weights.append(np.pad(call.args[1].value.numpy(), [(0, member.missing)] + [(0, 0)] * 3))
            biases.append(np.pad(np.zeros(member.count) if member.bias is None else member.bias, (0, member.missing)))
        weight, bias = np.concatenate(weights), np.concatenate(biases)
        x, first = self._where(calls[0].args[0])
        if missing := -weight.shape[3] % GRAIN:
            x = self.builder.emit(relax.op.nn.pad(x, [0] * 7 + [missing]))
            weight = np.pad(weight, [(0, 0)] * 3 + [(0, missing)])
        how = {
            "stride": [int(value) for value in calls[0].attrs.strides],
            "pads": [int(value) for value in calls[0].attrs.padding],
            "dilation": [int(value) for value in calls[0].attrs.dilation],
            "activation": group.members[0].activation,
            "first": first,
        }
        arguments = [x, _constant(weight), _constant(bias)]
        if group.members[0].residual is not None:
            residual, how["residual_first"] = self._where(group.members[0].residual)
            arguments.append(residual)
        shape = [*sizes(group.members[0].end)[:3], group.count]
        return relax.op.call_dps_packed(
            FUNCTION,
            relax.Tuple([*arguments, tvm().ir.StringImm(json.dumps(how))]),
            out_ty=relax.TensorType(shape, "float16"),
        )

    def _where(self, value: Any) -> tuple[Any, int]:
        """The tensor that a convolution is given, and the first channel that it reads."""
        part = self.channels(value)
        if part.first % GRAIN or part.count % GRAIN:
            return self.in_half(value), 0
        return self.whole(part), part.first


def _expectation(x: Any, weight: Any) -> Any:
    """(batch, terms, height, width) -> (batch, height, width, 1): of the weights, under the softmax of x."""
    te, tirx = tvm().te, tvm().tirx
    batch, terms, height, width = x.shape
    shape = (batch, height, width, 1)

    def axis() -> Any:
        return te.reduce_axis((0, terms), "k")

    k, i, j = axis(), axis(), axis()
    most = te.compute(shape, lambda b, y, z, _: te.max(x[b, k, y, z], axis=k), "most")
    above = te.compute(
        shape, lambda b, y, z, c: te.sum(weight[i] * tirx.exp(x[b, i, y, z] - most[b, y, z, c]), axis=i), "above"
    )
    below = te.compute(shape, lambda b, y, z, c: te.sum(tirx.exp(x[b, j, y, z] - most[b, y, z, c]), axis=j), "below")
    return te.compute(shape, lambda *at: above[at] / below[at], "expectation")


def _constant(value: Any) -> Any:
    import numpy as np

    return tvm().relax.const(np.ascontiguousarray(value, np.float16), "float16")


def _is_of_channels(value: Any, name: str) -> bool:
    """Whether it is a split or a concatenation along the last of four axes."""
    if operator(value) != name:
        return False
    one = value.args[0].fields[0] if name == "relax.concat" else value.args[0]
    return len(one.ty.shape) == 4 and int(value.attrs.axis) in (3, -1)
