"""Starts sftrun from Python and reads its JSON. docs/python.md explains it.

    import sftrun
    run = sftrun.train("run.yaml", {"train.learning_rate": 1e-4})
    print(run.metrics[-1]["loss"], sftrun.generate("Hello", adapter=run)["generated"])

All computing is the program's: no torch is imported, and the standard library is all that is needed.
"""

from sftrun.commands import call, config_check, config_show, dry_run, evaluate, generate, memory_check, preview, report, score
from sftrun.errors import Problem, SftrunError
from sftrun.program import find_program
from sftrun.run import Run
from sftrun.training import Training, start, train
from sftrun.words import Record

__all__ = ["Problem", "Record", "Run", "SftrunError", "Training", "call", "config_check", "config_show", "dry_run", "evaluate", "find_program", "generate", "memory_check",
           "preview", "report", "score", "start", "train"]
