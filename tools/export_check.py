#!/usr/bin/env python3
"""export_check.py: runs what export_nets wrote in onnxruntime, and compares it with the library.

    export_check.py FOLDER

Each model is read by onnx.checker with inference of shapes, run with both batches of its case, and
compared in shape, dtype and numbers: |a - b| <= bar * max(1, |b|), or of halves, which the runtime
may add up in halves, bar * the largest max(1, |b|) of the tensor. Prints a row for each case.
"""
import pathlib
import re
import sys

try:
    import numpy as np
    import onnx
    import onnxruntime
except ImportError as error:
    print(f"make test-export: skipped, {error}; PYTHON= names an interpreter that has numpy, onnx "
          "and onnxruntime")
    sys.exit(0)

# By precision: fp32, and halves. bf16 has 8 bits, of which a last one is 2^-7 of a number.
BARS = {"fp32": 1e-5, "fp16": 2e-3, "bf16": 1.6e-2, "autocast fp16": 2e-3, "autocast bf16": 1.6e-2}
DTYPES = {"float32": np.float32, "float16": np.float16, "int64": np.int64, "bool": np.bool_,
          "int32": np.int32, "uint8": np.uint8, "float64": np.float64}


def case_of(path):
    """Name, precision, and sets of inputs and outputs."""
    name, precision, sets = "", "", []
    for line in path.read_text(encoding="utf-8").splitlines():
        word, _, rest = line.partition(" ")
        if word == "name":
            name = rest
        elif word == "precision":
            precision = rest
        elif word == "set":
            sets.append({"in": [], "out": []})
        else:
            file, dtype, *shape = rest.split()
            data = np.fromfile(path.parent / file, DTYPES[dtype])
            sets[-1][word].append(data.reshape([int(size) for size in shape]))
    return name, precision, sets


def difference(got, want, halves):
    """The largest |a - b| / max(1, |b|); infinite where something else differs."""
    if got.dtype != want.dtype or got.shape != want.shape:
        return float("inf"), f"{got.dtype}{list(got.shape)}, not {want.dtype}{list(want.shape)}"
    a, b = got.astype(np.float64), want.astype(np.float64)
    if not np.array_equal(np.isnan(a), np.isnan(b)):
        return float("inf"), "NaN here and not there"
    same = (a == b) | np.isnan(a)
    scale = np.maximum(1.0, np.abs(np.where(np.isfinite(b), b, 0.0)))
    if halves:
        scale = scale.max(initial=1.0)
    with np.errstate(invalid="ignore"):
        off = np.where(same, 0.0, np.abs(a - b) / scale)
    return float(off.max(initial=0.0)), ""


def check(path):
    """Name, precision, kinds of nodes, difference and what is wrong."""
    name, precision, sets = case_of(path)
    model_path = str(path.with_suffix(".onnx"))
    if not pathlib.Path(model_path).exists():
        return name, precision, "", float("inf"), "no model was written"
    model = onnx.load(model_path)
    kinds = []
    for node in model.graph.node:
        if node.op_type not in kinds:
            kinds.append(node.op_type)
    worst, why = 0.0, ""
    try:
        onnx.checker.check_model(model, full_check=True)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(model_path, options,
                                               providers=["CPUExecutionProvider"])
        names = [value.name for value in session.get_inputs()]
        for one in sets:
            got = session.run(None, dict(zip(names, one["in"])))
            if len(got) != len(one["out"]):
                return name, precision, " ".join(kinds), float("inf"), f"{len(got)} outputs"
            for a, b in zip(got, one["out"]):
                off, note = difference(a, b, precision != "fp32")
                if off > worst:
                    worst, why = off, note
    except Exception as error:  # whatever the checker or the runtime raises is the finding
        return name, precision, " ".join(kinds), float("inf"), re.sub(r"\s+", " ", str(error))[:300]
    return name, precision, " ".join(kinds), worst, why


def main(folder):
    """Prints the table; the exit status is 1 where a case is beyond its bar."""
    failed, rows = 0, 0
    print(f"onnx {onnx.__version__}, onnxruntime {onnxruntime.__version__}")
    print(f"{'case':36}{'precision':15}{'difference':12}nodes")
    for path in sorted(pathlib.Path(folder).glob("*.case")):
        name, precision, kinds, off, why = check(path)
        good = off <= BARS[precision]
        rows += 1
        failed += not good
        print(f"{name:36}{precision:15}{off:<12.2g}{kinds if good else 'FAILED ' + why + ' ' + kinds}")
    print(f"{rows} cases, {failed} beyond their bar")
    return failed > 0 or rows == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
