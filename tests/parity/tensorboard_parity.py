"""The tensorboard package reads every tag and value of our event files, also across a resumed run.

usage: tensorboard_parity.py WRITE_EVENT_FILES      (the helper built from tests/observe/write_event_files.cpp)
"""

import os
import subprocess
import sys
import tempfile

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader


def scalars(accumulator, tag):
    return {event.step: event.value for event in accumulator.Scalars(tag)}


def expect(what, actual, expected):
    if actual != expected:
        sys.exit(f"{what}: expected {expected}, tensorboard read {actual}")


def main():
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run([sys.argv[1], directory], check=True)
        files = sorted(os.listdir(directory))
        expect("number of event files", len(files), 2)

        run = EventAccumulator(directory, size_guidance={"scalars": 0, "tensors": 0})
        run.Reload()
        expect("scalar tags", sorted(run.Tags()["scalars"]), ["train/learning_rate", "train/loss"])
        f32 = lambda values: {step: float(np.float32(value)) for step, value in values.items()}
        first = {step: 2.5 / step for step in (1, 2, 3)}
        second = {step: 100.0 + step for step in (4, 5, 6)}
        expect("train/loss", scalars(run, "train/loss"), f32(first | second))
        expect("train/learning_rate", scalars(run, "train/learning_rate"),
               f32({step: 1e-4 * step for step in (1, 2, 3)}))

        expect("text tags", run.Tags()["tensors"], ["config"])
        metadata = run.SummaryMetadata("config")
        expect("plugin of the text", metadata.plugin_data.plugin_name, "text")
        tensor = run.Tensors("config")[0].tensor_proto
        expect("text", [value.decode() for value in tensor.string_val],
               ["| key | value |\n|---|---|\n| model.name | größe 模型 |\n"])
        expect("shape of the text", [dim.size for dim in tensor.tensor_shape.dim], [1])

        # The resumed file alone tells readers to forget what they saw of steps after the checkpoint.
        starts = [event.step for event in EventFileLoader(os.path.join(directory, files[1])).Load()
                  if event.HasField("session_log")]
        expect("steps of SessionLog START", starts, [4])
    print("tensorboard reads our event files: 9 scalars, 1 text, 1 session start")


if __name__ == "__main__":
    main()
