#!/usr/bin/env python3
"""Programs of tests: reads JSON lines, answers one number for each. The first argument says how it behaves.

length          the number of characters of the answer
reward          the same, as {"reward": number}; null for an empty answer
slow S          waits S seconds before each answer
dies N FOLDER   ends with exit code 3 at line N, in each process; a file in FOLDER for each start
once FOLDER     the same at line 2, in the first process alone
hangs FOLDER    answers one line, starts a child and then sleeps; writes both process ids to FOLDER
lies TEXT       answers TEXT
chatty          answers with a second line
late            answers two lines for the last record, the second a little later
deaf            closes its standard input and output and sleeps
noisy           writes 1 MiB to standard error before each answer
"""

import json
import os
import pathlib
import subprocess
import sys
import time


def note_start(folder):
    path = pathlib.Path(folder)
    (path / f"start-{len(list(path.glob('start-*')))}").touch()
    return len(list(path.glob("start-*")))


def main():
    way, *words = sys.argv[1:]
    if way == "deaf":
        os.close(0)
        os.close(1)
        time.sleep(1000)
    starts = note_start(words[-1]) if way in ("dies", "once") else 0
    for number, line in enumerate(sys.stdin, 1):
        record = json.loads(line)
        length = len(record["completion"])
        if way == "slow":
            time.sleep(float(words[0]))
        if way == "dies" and number == int(words[0]) or way == "once" and number == 2 and starts == 1:
            print("about to end\nTraceback: no such judge", file=sys.stderr)
            sys.exit(3)
        if way == "hangs" and number == 2:
            child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
            (pathlib.Path(words[0]) / "pids").write_text(f"{os.getpid()} {child.pid}")
            time.sleep(1000)
        if way == "noisy":
            sys.stderr.write("x" * (1 << 20))
        if way == "reward":
            print(json.dumps({"reward": length or None}))
        elif way == "lies":
            print(words[0] if record["completion"] == "lie" else length)
        elif way == "chatty":
            print(f"{length}\njudged")
        else:
            print(length)
        if way == "late" and record["completion"] == "last":
            time.sleep(0.3)
            print("one more")


main()
