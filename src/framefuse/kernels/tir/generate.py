"""CUDA source and launch shape of kernels, as TVM generates them. Used by `kernels/build.py` only.

TVM orders the parameters of a generated kernel itself and computes the grid on the host from the arguments. Both are
read from the host half of the compiled function: each parameter is named after the PrimFunc's own, and each extent of
the grid becomes a Python expression in those names.
"""

import re

import tvm
from tvm import tirx
from tvm.tirx.build import split_host_device_mods

# The architecture decides which instructions TVM may choose; the oldest supported one suits all later ones.
TARGET = {"kind": "cuda", "arch": "sm_72", "host": {"kind": "llvm"}}

AXES = ("blockIdx.x", "blockIdx.y", "blockIdx.z", "threadIdx.x", "threadIdx.y", "threadIdx.z")
DYNAMIC_SHARED = "tirx.use_dyn_shared_memory"

# End of TVM's prelude of types and headers, which a machine without the CUDA toolkit lacks. `prelude.cuh` replaces it.
TVM_PRELUDE_END = "  #define ushort unsigned short\n#endif\n"

# A kernel begins by waiting for its predecessors on the stream, since it may be launched early (see prelude.cuh).
BEGIN = "  wait_for_previous();\n"

OPERATORS = {"Add": "+", "Sub": "-", "Mul": "*", "FloorDiv": "//", "FloorMod": "%"}
FUNCTIONS = {"Min": "min", "Max": "max"}


def generate(symbol, function):
    """Source and launch description of a PrimFunc that holds exactly one kernel.

    Returns:
        CUDA source without prelude, and a dict of JSON values: `entry`, the name of the kernel; `parameters`, its
        [name, type] in order; `given`, the names of the PrimFunc's parameters, used or not; `grid` and `block`,
        each x, y, z, the grid as expressions in the names of arguments; `shared`, bytes of dynamic shared memory;
        `options` for NVRTC; `waits`, whether it begins with BEGIN.

    The attribute `resident` of the function is the minimum number of blocks per multiprocessor, which bounds registers.
    The attribute `carried` names an argument and a number of bytes: the memory to which that address would point is
    then passed by value as the kernel's last parameter, of type `bytes N`.

    Raises:
        ValueError: the function has more than one kernel, or its launch cannot be described.
    """
    scheduled = "s_tir" in function.attrs
    target = tvm.target.Target(TARGET)
    module = tirx.transform.BindTarget(target)(tvm.IRModule({symbol: function}))
    pipeline, _, finalize = tirx.get_tir_pipeline("default" if scheduled else "tirx")
    host, devices = split_host_device_mods(pipeline(module))
    kernels = [kernel for device in devices.values() for kernel in device.functions.values()]
    if len(kernels) != 1:
        raise ValueError(f"{symbol} has {len(kernels)} kernels; a variant is one kernel")
    ((device_target, device),) = devices.items()
    code = tvm.get_global_func("target.build.cuda")(finalize()(device), device_target).inspect_source()
    _, found, body = code.partition(TVM_PRELUDE_END)
    if not found:
        raise ValueError(f"{symbol}: the code that TVM generates has an unknown prelude")
    facts = _launch(symbol, function, host, kernels[0])
    if "resident" in function.attrs:
        threads = "*".join(map(str, facts["block"]))
        bounds = f"__launch_bounds__({threads}, {int(function.attrs['resident'])})"
        body = re.sub(r"__launch_bounds__\(\d+\)", bounds, body)
    body, carrying = _carry(symbol, body, function.attrs, facts)
    head, found, rest = body.rpartition(f"{facts['entry']}(")
    if not found or body.count(facts["entry"]) != 2:
        raise ValueError(f"{symbol}: the kernel that TVM generates has an unknown form")
    signature, _, rest = rest.partition("{\n")
    return f"{head}{found}{signature}{{\n{BEGIN}{carrying}{rest}".strip() + "\n", facts


def _carry(symbol, body, attrs, facts):
    """The source with a `carried` argument passed by value, and the lines that take its address; unchanged without."""
    if "carried" not in attrs:
        return body, ""
    name, size = str(attrs["carried"][0]), int(attrs["carried"][1])
    signature = re.search(rf"{facts['entry']}\((.*?)\);", body)[1]
    parts, kept, lines = signature.split(", "), [], []
    for part, (expression, _) in zip(parts, facts["parameters"], strict=True):
        if expression == name:
            kind, variable = part.replace("__restrict__ ", "").rsplit(" ", 1)
            lines.append(f"  const {kind} {variable} = (const {kind})&carried;\n")
        else:
            kept.append(part)
    if not lines:
        raise ValueError(f"{symbol} has no parameter {name}")
    kept.append("const __grid_constant__ Carried carried")
    facts["parameters"] = [each for each in facts["parameters"] if each[0] != name] + [[name, f"bytes {size}"]]
    struct = f"struct __align__(16) Carried {{ int64_t words[{size // 8}]; }};\n"
    return struct + body.replace(signature, ", ".join(kept)), "".join(lines)


def _launch(symbol, function, host, kernel):
    (main,) = host.functions.values()
    given = {parameter.name for parameter in function.params}
    names, pointers, calls = {}, {}, []

    def visit(statement):
        kind = type(statement).__name__
        if kind == "SeqStmt":
            for part in statement.seq:
                visit(part)
        elif kind == "Bind":
            names[statement.var.name] = statement.value
        elif kind == "DeclBuffer":
            if _operator(statement.data) == "tirx.reinterpret":
                pointers[statement.buffer.name] = statement.data.args[0]
        elif kind == "Evaluate" and _operator(statement.value) == "tirx.call_ffi_kernel":
            calls.append(statement.value)
        elif hasattr(statement, "body"):
            visit(statement.body)

    def expression(value):
        """An integer or an address as a Python expression in the arguments of the launch."""
        kind = type(value).__name__
        if kind == "Var":
            bound = names.get(value.name)
            known = value.name in given or bound is None or _is_argument(bound)
            return value.name if known else expression(bound)
        if _operator(value) == "tirx.buffer_data":
            buffer = value.args[0].name
            address = pointers.get(buffer)
            return buffer if address is None or _is_argument(address) else expression(address)
        if kind == "IntImm":
            return str(value.value)
        if kind == "Cast":
            return expression(value.value)
        if kind in OPERATORS:
            return f"({expression(value.a)} {OPERATORS[kind]} {expression(value.b)})"
        if kind in FUNCTIONS:
            return f"{FUNCTIONS[kind]}({expression(value.a)}, {expression(value.b)})"
        raise ValueError(f"{symbol}: {value} ({kind}) cannot be computed by the launcher; pass it as an argument")

    visit(main.body)
    if len(calls) != 1:
        raise ValueError(f"{symbol} launches its kernel {len(calls)} times")
    arguments = list(calls[0].args)[1:]
    count = len(kernel.params)
    axes = [str(axis) for axis in calls[0].attrs.launch_params]
    extents = {axis: expression(value) for axis, value in zip(axes, arguments[count:], strict=True)}
    shape = [extents.get(axis, "1") for axis in AXES]
    if not all(extent.isdigit() for extent in shape[3:]):
        raise ValueError(f"{symbol}: threads per block {shape[3:]} are not constants")
    return {
        "entry": str(kernel.attrs["global_symbol"]),
        "parameters": [
            [expression(value), _type(parameter)]
            for value, parameter in zip(arguments[:count], kernel.params, strict=True)
        ],
        "given": sorted(given),
        "grid": shape[:3],
        "block": [int(extent) for extent in shape[3:]],
        "shared": int(extents.get(DYNAMIC_SHARED, 0)),
        "waits": True,
        "options": [] if bool(function.attrs.get("fmad", True)) else ["--fmad=false"],
    }


def _operator(value):
    return value.op.name if type(value).__name__ == "Call" and hasattr(value.op, "name") else None


def _is_argument(value):
    """Whether a value is an argument of the host function: the address or a size of a buffer."""
    while type(value).__name__ == "Cast":
        value = value.value
    return _operator(value) == "tirx.tvm_struct_get"


def _type(parameter):
    text = str(parameter.ty)
    return "pointer" if "handle" in text else text.removeprefix("T.")
