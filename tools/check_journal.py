#!/usr/bin/env python3
"""Reads what a journal wrote with TensorBoard's own package, and compares every value.

    check_journal.py FOLDER LOG.jsonl [LOG.csv]

FOLDER holds the event file, the others are the same journal's. Numbers of event files are fp32, so
those of the JSON file are rounded before they are compared. Wants tensorboard and numpy.
"""
import csv
import io
import json
import struct
import sys
import zlib

import numpy as np
from tensorboard.backend.event_processing import event_accumulator
from tensorboard.util import tensor_util


def rows_of(path):
    """The entries of the JSON file by kind, tag and order."""
    kinds = {"value": "scalars", "text": "tensors", "count": "histograms", "width": "images",
             "graph_bytes": "graph"}
    found = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            kind = next(name for key, name in kinds.items() if key in row)
            found.setdefault((kind, row["tag"]), []).append(row)
    return found


def png_size(data):
    """Width, height and bytes per pixel of a PNG file, whose checks and pixels are read."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, head, packed = 8, None, b""
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length : at + 12 + length])[0] == zlib.crc32(kind + body)
        if kind == b"IHDR":
            head = struct.unpack(">IIBBBBB", body)
        if kind == b"IDAT":
            packed += body
        at += 12 + length
    channels = {0: 1, 2: 3, 6: 4}[head[3]]
    assert len(zlib.decompress(packed)) == head[1] * (1 + head[0] * channels)
    return head[0], head[1], channels


def compare(kind, event, row):
    """Whether an event of TensorBoard is the entry of the JSON file."""
    assert event.step == row["step"], (event, row)
    assert event.wall_time == float(row["time"]), (event, row)
    if kind == "scalars":
        want = np.float32(float(row["value"]))
        assert np.float32(event.value) == want or np.isnan(want) and np.isnan(event.value), (event, row)
    elif kind == "tensors":
        assert tensor_util.make_ndarray(event.tensor_proto)[0].decode() == row["text"], (event, row)
    elif kind == "histograms":
        h = event.histogram_value
        assert (h.num, h.min, h.max) == (row["count"], row["min"], row["max"]), (event, row)
        assert (h.sum, h.sum_squares) == (row["sum"], row["squares"]), (event, row)
        assert list(h.bucket_limit) == row["limits"] and list(h.bucket) == row["counts"], (event, row)
        assert sum(h.bucket) == h.num
    else:
        want = (row["width"], row["height"], row["channels"])
        assert (event.width, event.height) == want[:2], (event, row)
        assert png_size(event.encoded_image_string) == want, row


def check_graph(graph):
    """Every node has a name of its own, and reads nodes before it."""
    names = set()
    for node in graph.node:
        assert node.name not in names and node.op, node
        assert all(name.partition(":")[0] in names for name in node.input), node
        assert node.attr["_output_shapes"].list.shape, node
        names.add(node.name)
    assert names
    print(f"a graph of {len(names)} nodes")


def main(folder, jsonl, table=None):
    sizes = dict.fromkeys(("scalars", "histograms", "images", "tensors", "compressedHistograms"), 0)
    events = event_accumulator.EventAccumulator(folder, size_guidance=sizes)
    events.Reload()
    want = rows_of(jsonl)
    count = 0
    for key in [key for key in want if key[0] == "graph"]:
        count += len(want.pop(key))
        check_graph(events.Graph())
    for (kind, tag), rows in want.items():
        read = {"scalars": events.Scalars, "histograms": events.Histograms,
                "images": events.Images, "tensors": events.Tensors}[kind]
        got = read(tag)
        assert len(got) == len(rows), (kind, tag, len(got), len(rows))
        for event, row in zip(got, rows):
            compare(kind, event, row)
            count += 1
    tags = events.Tags()
    there = sum(len(tags[kind]) for kind in ("scalars", "histograms", "images", "tensors"))
    assert there == len(want), (tags, list(want))
    if table:
        scalars = [row for (kind, _), rows in want.items() if kind == "scalars" for row in rows]
        with open(table, encoding="utf-8", newline="") as file:
            lines = list(csv.DictReader(io.StringIO(file.read())))
        key = lambda row: (int(row["step"]), row["tag"], repr(float(row["value"])), repr(float(row["time"])))
        assert sorted(map(key, lines)) == sorted(map(key, scalars))
    print(f"{count} entries under {there} tags are what the journal says")


if __name__ == "__main__":
    main(*sys.argv[1:])
