"""Offloads the convolutions of a Relax module to cuDNN, in float16 and NHWC (`cuda.py`).

Operators between them that only move values (concatenation, split, pooling, resizing) stay in float16. The rest, the
decoding of a head, is float32.

A kernel launch costs at least 2 us. So alike convolutions of one input are merged, and split channels are read in place
instead of being copied.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np

from framefuse.engines.tvm.package import builder_without_main, operator, reads, rebuild, shape_of, tvm

FUNCTION = "framefuse.tvm.convolve"
GRAIN = 8
"""Channel counts and offsets are multiples of this for tensor cores."""
MOVES = ("relax.concat", "relax.split", "relax.nn.max_pool2d", "relax.image.resize2d")


def offload_convolutions(module: Any) -> Any:
    """The module with its convolutions as calls of `FUNCTION`, except those that do not suit tensor cores.

    None if TVM cannot convert the module to NHWC, for example because of tensors of five axes.
    """
    passes = tvm().relax.transform
    try:
        module = passes.ConvertLayout({"relax.nn.conv2d": ["NHWC", "OHWI"]})(module)
    except Exception:  # TVM raises unrelated classes
        return None
    tidying = [passes.FoldConstant(), passes.CanonicalizeBindings(), passes.DeadCodeElimination()]
    return _Rewriter(tvm().transform.Sequential(tidying)(module)).module()


@dataclass(frozen=True, eq=False)
class FusedConv:
    """A convolution with the operators that cuDNN fuses into it; `end` is the variable of the result."""

    conv: Any
    bias: Any
    activation: str
    residual: Any
    end: Any

    @property
    def count(self) -> int:
        """Output channels."""
        return int(shape_of(self.end)[3])

    @property
    def padding(self) -> int:
        """Unused zero channels after them."""
        return -self.count % GRAIN


@dataclass(frozen=True, eq=False)
class Group:
    """Convolutions merged into one, whose output channels are concatenated."""

    members: list[FusedConv]

    @property
    def count(self) -> int:
        return sum(member.count + member.padding for member in self.members)


@dataclass(frozen=True)
class Channels:
    """A range of channels of a tensor: `whole` is a variable of the old function, or a group for its output."""

    whole: Any
    first: int
    count: int

    @property
    def is_all(self) -> bool:
        whole = self.whole.count if isinstance(self.whole, Group) else shape_of(self.whole)[3]
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
        self.convs = {conv.end: conv for conv in map(self._fused_conv, self.bindings) if conv is not None}
        self.grouped = self._merge_alike()
        self.calls: dict[Group, Any] = {}
        self.builder = builder_without_main(module)
        self._fp32: dict[Any, Any] = {}
        self._fp16: dict[Any, Any] = {}

    def module(self) -> Any:
        params = list(self.function.params)
        self._fp32.update({param: param for param in params})
        with self.builder.function("main", params):
            with self.builder.dataflow():
                for binding in self.bindings:  # in order, which keeps recursion shallow
                    if binding.var in self.convs:
                        self.fp16(binding.var)
                out = self.builder.emit_output(self.fp32(self.function.body.body))
            self.builder.emit_func_output(out)
        return self.builder.finalize()

    def fp32(self, value: Any) -> Any:
        """A value in float32, as a variable of the new function."""
        relax = tvm().relax
        if isinstance(value, relax.Tuple):
            return relax.Tuple([self.fp32(field) for field in value.fields])
        if not isinstance(value, relax.Var):
            return value
        if value not in self._fp32:
            if value in self.convs:
                result = relax.op.astype(self.fp16(value), "float32")
            else:
                result = self._expectation(self.values[value])
                result = rebuild(self.values[value], self.fp32) if result is None else result
            self._fp32[value] = self.builder.emit(result)
        return self._fp32[value]

    def fp16(self, value: Any) -> Any:
        """A value in float16, as a variable of the new function; a copy if it is a part of another's channels."""
        relax = tvm().relax
        if isinstance(value, relax.Tuple):
            return relax.Tuple([self.fp16(field) for field in value.fields])
        if not isinstance(value, relax.Var):
            return value
        if value not in self._fp16:
            old: Any = self.values.get(value)
            part = self.channels(value)
            if part.whole is not value:
                result = self.whole(part)
                if not part.is_all:
                    result = relax.op.strided_slice(result, [3], [part.first], [part.first + part.count])
            elif _is_along_channels(old, "relax.concat"):
                result = relax.op.concat(self._concat_inputs(old.args[0]), 3)
            elif isinstance(old, relax.TupleGetItem) or operator(old) in MOVES:
                result = rebuild(old, self.fp16)
            else:
                result = relax.op.astype(self.fp32(value), "float16")
            self._fp16[value] = self.builder.emit(result)
        return self._fp16[value]

    def _expectation(self, value: Any) -> Any:
        """Softmax and the weighted sum after it as one kernel, as in heads that predict distributions of distances.

        Exporters write the sum as a convolution to one channel; the result is
        `sum(w exp(x - max)) / sum(exp(x - max))`. None if `value` is not such a convolution.
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
        return self.builder.emit_te(_expectation, self.fp32(soft.args[0]), weights, primfunc_name_hint="expectation")

    def channels(self, value: Any) -> Channels:
        """Where a value lies without a copy."""
        if value in self.grouped:
            return self.grouped[value]
        old = self.values.get(value)
        if isinstance(old, tvm().relax.TupleGetItem):
            split: Any = self.values.get(old.tuple_value)
            if _is_along_channels(split, "relax.split"):
                source = self.channels(split.args[0])
                counts = [int(field.shape[3]) for field in old.tuple_value.ty.fields]
                return Channels(source.whole, source.first + sum(counts[: old.index]), counts[old.index])
        shape = shape_of(value) if isinstance(value, tvm().relax.Var) and hasattr(value.ty, "shape") else []
        return Channels(value, 0, shape[3] if len(shape) == 4 else 0)

    def whole(self, part: Channels) -> Any:
        """The tensor that the channels belong to, in float16."""
        if not isinstance(part.whole, Group):
            return self.fp16(part.whole)
        if part.whole not in self.calls:
            self.calls[part.whole] = self.builder.emit(self._call(part.whole))
        return self.calls[part.whole]

    def _concat_inputs(self, fields: Any) -> list[Any]:
        """Inputs of a concatenation; consecutive fields that make up a whole tensor are replaced by that tensor."""
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
            joined += [self.whole(part)] if part.is_all else [self.fp16(field) for field, _ in run]
        return joined

    def _merge_alike(self) -> dict[Any, Channels]:
        """Merge alike convolutions of one input; where the output of each convolution lies."""
        groups: dict[Any, list[FusedConv]] = defaultdict(list)
        for conv in self.convs.values():
            call = self.values[conv.conv]
            geometry = [str(value) for value in (call.attrs.strides, call.attrs.padding, call.attrs.dilation)]
            kernel = call.args[1].value.shape[1:3]
            alone = conv if conv.residual is not None else None
            groups[call.args[0], str(kernel), *geometry, conv.activation, alone].append(conv)
        where = {}
        for members in groups.values():
            group, first = Group(members), 0
            for member in members:
                where[member.end] = Channels(group, first, member.count)
                first += member.count + member.padding
        return where

    def _fused_conv(self, binding: Any) -> FusedConv | None:
        """The convolution of a binding and the operators to fuse into it; None if cuDNN cannot run it."""
        relax = tvm().relax
        call = binding.value
        if operator(call) != "relax.nn.conv2d" or not isinstance(call.args[1], tvm().ir.Constant):
            return None
        outputs = int(call.args[1].value.shape[0])
        if outputs < GRAIN or call.attrs.groups != 1:
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
            alike = len(others) == 1 and isinstance(others[0], relax.Var) and shape_of(others[0]) == shape_of(end)
            if alike and not outputs % GRAIN:
                end, residual = after.var, others[0]
        return FusedConv(binding.var, bias, activation, residual, end)

    def _only_reader(self, variable: Any) -> Any:
        readers = self.readers[variable]
        return readers[0] if len(readers) == 1 else None

    def _call(self, group: Group) -> Any:
        relax = tvm().relax
        calls = [self.values[member.conv] for member in group.members]
        weights, biases = [], []
        for member, call in zip(group.members, calls, strict=True):
            weights.append(np.pad(call.args[1].value.numpy(), [(0, member.padding)] + [(0, 0)] * 3))
            biases.append(np.pad(np.zeros(member.count) if member.bias is None else member.bias, (0, member.padding)))
        weight, bias = np.concatenate(weights), np.concatenate(biases)
        x, first = self._location(calls[0].args[0])
        if padding := -weight.shape[3] % GRAIN:
            x = self.builder.emit(relax.op.nn.pad(x, [0] * 7 + [padding]))
            weight = np.pad(weight, [(0, 0)] * 3 + [(0, padding)])
        attrs = calls[0].attrs
        geometry = {"stride": attrs.strides, "pads": attrs.padding, "dilation": attrs.dilation}
        attributes: dict[str, Any] = {name: [int(value) for value in values] for name, values in geometry.items()}
        attributes |= {"activation": group.members[0].activation, "first": first}
        arguments = [x, _constant(weight), _constant(bias)]
        if group.members[0].residual is not None:
            residual, attributes["residual_first"] = self._location(group.members[0].residual)
            arguments.append(residual)
        arguments.append(tvm().ir.StringImm(json.dumps(attributes)))
        out = relax.TensorType([*shape_of(group.members[0].end)[:3], group.count], "float16")
        return relax.op.call_dps_packed(FUNCTION, relax.Tuple(arguments), out_ty=out)

    def _location(self, value: Any) -> tuple[Any, int]:
        """The tensor to pass to a convolution, and the first channel to read."""
        part = self.channels(value)
        if part.first % GRAIN or part.count % GRAIN:
            return self.fp16(value), 0
        return self.whole(part), part.first


def _expectation(x: Any, weight: Any) -> Any:
    """(batch, terms, height, width) -> (batch, height, width, 1): expectation of the weights under the softmax of x."""
    te, tirx = tvm().te, tvm().tirx
    batch, terms, height, width = x.shape
    shape = (batch, height, width, 1)
    k, i, j = (te.reduce_axis((0, terms), "k") for _ in range(3))
    peak = te.compute(shape, lambda b, y, z, _: te.max(x[b, k, y, z], axis=k), "peak")

    def share(b: Any, term: Any, y: Any, z: Any, c: Any) -> Any:
        return tirx.exp(x[b, term, y, z] - peak[b, y, z, c])

    numerator = te.compute(shape, lambda b, y, z, c: te.sum(weight[i] * share(b, i, y, z, c), axis=i), "numerator")
    denominator = te.compute(shape, lambda b, y, z, c: te.sum(share(b, j, y, z, c), axis=j), "denominator")
    return te.compute(shape, lambda *at: numerator[at] / denominator[at], "expectation")


def _constant(value: Any) -> Any:
    return tvm().relax.const(np.ascontiguousarray(value, np.float16), "float16")


def _is_along_channels(value: Any, name: str) -> bool:
    """Whether it is the operator `name` (a split or concatenation) along the last of four axes."""
    if operator(value) != name:
        return False
    one = value.args[0].fields[0] if name == "relax.concat" else value.args[0]
    return len(one.ty.shape) == 4 and int(value.attrs.axis) in (3, -1)
