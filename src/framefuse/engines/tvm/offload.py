"""Convolutions of a Relax module that cuDNN runs: found, turned to float16 and channels last, and called by name.

What TVM compiles between them stays in float16 where values only move (concatenation, splits, pooling, resizing), and
in float32 elsewhere: the decoding of a head. `convolve.py` is what is called.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from framefuse.engines.tvm.package import tvm

FUNCTION = "framefuse.tvm.convolve"

GRAIN = 8
"""Channels of which tensor cores take whole groups."""

MOVES = ("relax.concat", "relax.split", "relax.nn.max_pool2d", "relax.image.resize2d")


def off_load(module: Any) -> Any:
    """The module with its convolutions as calls of `FUNCTION`; those that tensor cores cannot take stay."""
    passes = tvm().relax.transform
    module = tvm().transform.Sequential(
        [
            passes.ConvertLayout({"relax.nn.conv2d": ["NHWC", "OHWI"]}),
            passes.FoldConstant(),
            passes.CanonicalizeBindings(),
            passes.DeadCodeElimination(),
        ]
    )(module)
    return _Rewriter(module["main"]).module()


@dataclass(frozen=True)
class Found:
    """A convolution with what cuDNN does in the same kernel; `end` is the variable that it all makes."""

    conv: Any
    bias: Any
    activation: str
    residual: Any
    end: Any


class _Rewriter:
    def __init__(self, function: Any) -> None:
        self.function = function
        self.bindings = [binding for block in function.body.blocks for binding in block.bindings]
        self.values = {binding.var: binding.value for binding in self.bindings}
        self.readers: dict[Any, list[Any]] = defaultdict(list)
        for binding in self.bindings:
            for name in _reads(binding.value):
                self.readers[name].append(binding)
        self.readers[function.body.body].append(None)
        self.found: dict[Any, Found] = {}
        for binding in self.bindings:
            chain = self._chain(binding)
            if chain is not None:
                self.found[chain.end] = chain
        self.builder = tvm().relax.BlockBuilder()
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
                made = self._again(self.values[value], self.in_full)
            self.full[value] = self.builder.emit(made)
        return self.full[value]

    def in_half(self, value: Any) -> Any:
        """A value in float16."""
        relax = tvm().relax
        if isinstance(value, relax.Tuple):
            return relax.Tuple([self.in_half(field) for field in value.fields])
        if not isinstance(value, relax.Var):
            return value
        if value not in self.half:
            old = self.values.get(value)
            moves = isinstance(old, relax.TupleGetItem) or _name(old) in MOVES
            if value in self.found:
                made = self._call(self.found[value])
            elif moves:
                made = self._again(old, self.in_half)
            else:
                made = relax.op.astype(self.in_full(value), "float16")
            self.half[value] = self.builder.emit(made)
        return self.half[value]

    def _again(self, value: Any, of: Any) -> Any:
        relax = tvm().relax
        if isinstance(value, relax.TupleGetItem):
            return relax.TupleGetItem(of(value.tuple_value), value.index)
        if isinstance(value, relax.Call):
            return relax.Call(value.op, [of(argument) for argument in value.args], value.attrs, value.ty_args)
        return of(value)

    def _chain(self, binding: Any) -> Found | None:
        """The convolution that a binding makes, and what follows it, if cuDNN can take it."""
        relax = tvm().relax
        call = binding.value
        if (
            _name(call) != "relax.nn.conv2d"
            or call.attrs.groups != 1
            or not isinstance(call.args[1], tvm().ir.Constant)
        ):
            return None
        outputs = int(call.args[1].value.shape[0])
        if outputs % GRAIN:
            return None
        end, bias, activation, residual = binding.var, None, "", None
        after = self._only_reader(end)
        if _name(after) == "relax.add" and isinstance(after.value.args[1], tvm().ir.Constant):
            constant = after.value.args[1].value.numpy()
            if constant.size == outputs and constant.shape[-1] == outputs:
                end, bias = after.var, constant.reshape(-1)
        readers = self.readers[end]
        kinds = sorted(_name(reader) for reader in readers)
        if kinds == ["relax.multiply", "relax.sigmoid"]:
            gate, product = sorted(readers, key=_name, reverse=True)
            if set(_reads(product.value)) == {end, gate.var} and self.readers[gate.var] == [product]:
                end, activation = product.var, "silu"
        elif kinds == ["relax.nn.relu"]:
            end, activation = readers[0].var, "relu"
        after = self._only_reader(end)
        if _name(after) == "relax.add":
            others = [argument for argument in after.value.args if not argument.same_as(end)]
            alike = len(others) == 1 and isinstance(others[0], relax.Var) and _shape(others[0]) == _shape(end)
            if alike:
                end, residual = after.var, others[0]
        return Found(binding.var, bias, activation, residual, end)

    def _only_reader(self, variable: Any) -> Any:
        readers = self.readers[variable]
        return readers[0] if len(readers) == 1 else None

    def _call(self, found: Found) -> Any:
        import numpy as np

        relax = tvm().relax
        call = self.values[found.conv]
        x, weight = self.in_half(call.args[0]), call.args[1].value.numpy()
        inner = weight.shape[3]
        if missing := -inner % GRAIN:
            pads = [0] * 7 + [missing]
            x = self.builder.emit(relax.op.nn.pad(x, pads))
            weight = np.pad(weight, [(0, 0)] * 3 + [(0, missing)])
        bias = np.zeros(weight.shape[0]) if found.bias is None else found.bias
        arguments = [x, _constant(weight), _constant(bias)]
        if found.residual is not None:
            arguments.append(self.in_half(found.residual))
        how = {
            "stride": [int(value) for value in call.attrs.strides],
            "pads": [int(value) for value in call.attrs.padding],
            "dilation": [int(value) for value in call.attrs.dilation],
            "activation": found.activation,
        }
        out = relax.TensorType(_shape(found.end), "float16")
        return relax.op.call_dps_packed(
            FUNCTION, relax.Tuple([*arguments, tvm().ir.StringImm(json.dumps(how))]), out_ty=out
        )


def _constant(value: Any) -> Any:
    import numpy as np

    return tvm().relax.const(np.ascontiguousarray(value, np.float16), "float16")


def _shape(value: Any) -> list[int]:
    return [int(size) for size in value.ty.shape]


def _name(thing: Any) -> str:
    """The operator of a call, or of a binding's call."""
    value = getattr(thing, "value", thing)
    return str(value.op.name) if isinstance(value, tvm().relax.Call) and hasattr(value.op, "name") else ""


def _reads(value: Any) -> list[Any]:
    """Variables that a binding's value reads."""
    relax = tvm().relax
    if isinstance(value, relax.Var):
        return [value]
    if isinstance(value, relax.TupleGetItem):
        return _reads(value.tuple_value)
    fields = value.fields if isinstance(value, relax.Tuple) else value.args if isinstance(value, relax.Call) else []
    return [name for field in fields for name in _reads(field)]
