#!/usr/bin/env python3
"""The page that `sftrun report` writes, in a real browser.

    tests/smoke/report_page.py --sftrun build/bin/sftrun [--steps 100000] [--screenshots FOLDER]

Standard library only; skipped without Chromium.
one run     every chart is drawn, nothing is written to the console, and nothing is loaded from elsewhere
zoom        dragging over one chart zooms all, "Reset zoom" undoes it; smoothing, axes and the logarithm change the curves
colours     the system's scheme, and the page's own switch
phone       390 pixels: the page does not scroll sideways, and one finger scrolls over a chart
two runs    curves in one chart, settings that differ are marked
hostile     names, prompts, settings and logs with markup are shown as text
damaged     half a line, lines that are no JSON, files that are missing
long        a run of many steps: a small page, which answers soon
"""

import argparse
import json
import math
import pathlib
import random
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import browser as chromium  # noqa: E402

SKIPPED = 77
GIB = 1 << 30
NASTY = "</script><script>window.wasRun = true</script><img src=x onerror='window.wasRun = true'>\"'&"
CHARTS = ["Loss", "Gradient norm", "Learning rate", "Tokens per second", "Time of a step", "Peak memory",
          "Where the time of a step goes", "Memory in use", "GPU utilization", "CPU utilization", "Loss of each rank"]

failures = []


def expect(what, holds, detail=""):
    print(f"{'ok  ' if holds else 'FAIL'} {what}{'' if holds else f': {detail}'}", flush=True)
    if not holds:
        failures.append(what)


def training_line(step, steps, generator, scale=1.0):
    loss = scale * (1.2 + 2.3 * math.exp(-4 * step / steps) + generator.gauss(0, 0.05))
    seconds = 0.41 + abs(generator.gauss(0, 0.02))
    tokens = 8 * generator.randint(1800, 2040)
    return {"step": step, "epoch": 3 * step / steps, "loss": loss, "grad_norm": 0.8 + abs(generator.gauss(0, 0.2)),
            "learning_rate": 1e-4 * (1 + math.cos(math.pi * step / steps)), "label_tokens": tokens // 3, "tokens": tokens,
            "tokens_per_second": tokens / seconds, "step_seconds": seconds, "peak_memory_bytes": [21 * GIB, 20 * GIB],
            "loss_per_rank": [loss - 0.03, loss + 0.03], "gpu_utilization": [93.0, 90.0], "memory_used_bytes": [23 * GIB, 22 * GIB],
            "cpu_utilization": [101.0, 99.0], "data_seconds": 0.01 * seconds, "forward_seconds": 0.3 * seconds,
            "backward_seconds": 0.55 * seconds, "communication_seconds": 0.1 * seconds, "optimizer_seconds": 0.03 * seconds,
            "other_seconds": 0.01 * seconds}


def write_run(folder, steps=300, scale=1.0, rate="0.0002", model="org/model"):
    generator = random.Random(f"{folder.name} {steps}")
    folder.mkdir(parents=True)
    with open(folder / "metrics.jsonl", "w") as metrics:
        for step in range(1, steps + 1):
            line = training_line(step, steps, generator, scale)
            if step == steps // 2:
                line["loss"] *= 3
            metrics.write(json.dumps(line) + "\n")
            if step % max(1, steps // 10) == 0:
                metrics.write(json.dumps({"step": step, "eval_loss": line["loss"] + 0.1, "eval_perplexity": 4.0, "eval_rouge_l": None,
                                          "eval_seconds": 1.0}) + "\n")
    purposes = {"base": 7 * GIB, "trainable": GIB, "gradients": GIB, "optimizer": 2 * GIB, "activations_peak": 9 * GIB}
    (folder / "run.json").write_text(json.dumps({
        "version": "0.1.0", "status": "done", "backend": "fused", "comm_backend": "nccl", "strategy": "ddp", "dtype": "bf16",
        "base_model": model, "world_size": 2, "device_names": ["NVIDIA H100"] * 2, "started_at": 1.76e9, "finished_at": 1.76e9 + 4000,
        "ranks": [{"bytes": purposes}, {"bytes": {**purposes, "activations_peak": 8 * GIB}}],
        "planned_bytes": {**purposes, "activations_peak": 10 * GIB}}))
    (folder / "config.resolved.yaml").write_text(
        f"model:\n  name: {json.dumps(model)}\ntuning:\n  mode: lora\n  lora:\n    r: 16\n"
        f"data:\n  packing: true\n  bin_tokens: 2048\ntrain:\n  global_batch_size: 8\n  learning_rate: {rate}\n  seed: 1\n")
    return folder


def report(sftrun, *words, code=0):
    done = subprocess.run([sftrun, "report", *map(str, words)], capture_output=True, text=True, timeout=300)
    if done.returncode != code:
        raise RuntimeError(f"sftrun report: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


# Pixels of a chart that its curves have coloured: the canvas below the axes is transparent elsewhere.
DRAWN = """[...document.querySelectorAll('figure')].map(figure => [...figure.querySelectorAll('canvas')].reduce((most, canvas) => {
  const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  let drawn = 0;
  for (let i = 0; i < pixels.length; i += 4)
    if (pixels[i + 3] > 128 && Math.max(pixels[i], pixels[i+1], pixels[i+2]) - Math.min(pixels[i], pixels[i+1], pixels[i+2]) > 40) ++drawn;
  return Math.max(most, drawn);
}, 0))"""
AXIS_LABELS = "[...document.querySelectorAll('figure')].map(f => [...f.querySelectorAll('.dygraph-axis-label-x')].map(e => e.textContent).join(' '))"


def axis_labels(page):
    return page.evaluate(AXIS_LABELS)


def center_of(page, chart):
    return page.evaluate(f"(() => {{ const plot = document.querySelectorAll('.plot')[{chart}]; plot.scrollIntoView({{block: 'center'}});"
                         "const r = plot.getBoundingClientRect(); return [r.x, r.y, r.width, r.height]; })()")


def choose(page, name, value, event):
    page.evaluate(f"(() => {{ const e = document.getElementById('{name}'); if (e.type === 'checkbox') e.checked = {json.dumps(value)};"
                  f"else e.value = {json.dumps(value)}; e.dispatchEvent(new Event('{event}')); }})()")


def check_one_run(page, sftrun, folder):
    said = report(sftrun, write_run(folder / "one"))
    expect("one run: the command names the page and what it found", "report.html" in said and "at step 150: look at the records" in said, said)
    page.show(1280, 900)
    page.open(folder / "one/report.html")
    titles = page.evaluate("[...document.querySelectorAll('figure h3')].map(e => e.firstChild.textContent.trim())")
    expect("one run: the charts", titles == CHARTS, titles)
    drawn = page.evaluate(DRAWN)
    expect("one run: every chart has a curve", len(drawn) == len(CHARTS) and min(drawn) > 100, drawn)
    text = page.evaluate("document.body.innerText")
    expect("one run: overview, memory, settings", all(part in text for part in ("org/model", "estimate, rank with the highest use", "train.learning_rate",
                                                                                  "2 × NVIDIA H100", "Licence of dygraphs")), text[:3000])


def check_zoom(page):
    before = axis_labels(page)
    x, y, width, height = center_of(page, 0)
    page.drag((x + 0.5 * width, y + height / 2), (x + 0.7 * width, y + height / 2))
    after = axis_labels(page)
    expect("zoom: all charts follow", all(a != b for a, b in zip(before, after)) and len(set(after)) == 1, (before, after))
    page.evaluate("document.getElementById('reset').click()")
    expect("zoom: reset", axis_labels(page) == before, axis_labels(page))
    pixels = page.evaluate(DRAWN)
    choose(page, "smoothing", "0.9", "input")
    smoothed = page.evaluate(DRAWN)
    expect("zoom: smoothing changes the noisy curves, not the learning rate", smoothed[0] != pixels[0] and smoothed[2] == pixels[2],
           (pixels, smoothed))
    choose(page, "smoothing", "0", "input")
    expect("zoom: without smoothing as before", page.evaluate(DRAWN) == pixels)
    choose(page, "log", True, "change")
    expect("zoom: the logarithm changes the loss", page.evaluate(DRAWN)[0] != pixels[0])
    choose(page, "log", False, "change")
    choose(page, "axis", "tokens", "change")
    labels = axis_labels(page)[0]
    expect("zoom: tokens on the axis", "M" in labels and labels != before[0], labels)
    choose(page, "axis", "steps", "change")


def check_colours(page):
    def background():
        return page.evaluate("getComputedStyle(document.body).backgroundColor")
    light = background()
    page.show(1280, 900, "dark")
    dark, curves = background(), page.evaluate(DRAWN)
    expect("colours: the system's scheme", light == "rgb(255, 255, 255)" and dark != light, (light, dark))
    expect("colours: curves on a dark page", min(curves) > 100, curves)
    choose(page, "theme", "light", "change")
    expect("colours: the switch to light", background() == light, background())
    page.show(1280, 900, "light")
    choose(page, "theme", "dark", "change")
    expect("colours: the switch to dark", background() == dark, background())
    choose(page, "theme", "auto", "change")


def check_phone(page, shot):
    page.show(390, 844, is_phone=True)
    width = page.evaluate("document.documentElement.scrollWidth")
    expect("phone: the page is as wide as the screen", width == 390, width)
    expect("phone: every chart has a curve", min(page.evaluate(DRAWN)) > 100)
    shot(page, "phone")
    x, y, w, h = center_of(page, 0)
    before = axis_labels(page)[0]
    for kind, points in (("touchStart", [(x + w / 2, y + h / 2)]), ("touchMove", [(x + w / 2 + 60, y + h / 2)]), ("touchEnd", [])):
        page.call("Input.dispatchTouchEvent", type=kind, touchPoints=[{"x": a, "y": b} for a, b in points])
    expect("phone: one finger does not move the curves", axis_labels(page)[0] == before, axis_labels(page)[0])
    page.show(1280, 900)


def check_two_runs(page, sftrun, folder, shot):
    page_file = folder / "both.html"
    said = report(sftrun, folder / "one", write_run(folder / "other", 200, 1.2, rate="0.001"), "--output", page_file, "--json")
    answer = json.loads(said)
    expect("two runs: --json", [run["last_step"] for run in answer["runs"]] == [300, 200] and answer["output"] == str(page_file), said)
    page.open(page_file)
    keys = page.evaluate("[...document.querySelector('figure').querySelectorAll('.keys span')].map(e => e.textContent)")
    expect("two runs: four curves in the chart of losses",
           keys == ["one: training", "one: validation", "other: training", "other: validation"], keys)
    marked = page.evaluate("[...document.querySelectorAll('tr.differs')].map(e => e.innerText.split('\\t').map(s => s.trim()))")
    expect("two runs: only the setting that differs is marked", marked == [["train.learning_rate", "0.0002", "0.001"]], marked)
    choose(page, "differences", True, "change")
    shown = page.evaluate("[...document.querySelectorAll('tr.same')].every(e => getComputedStyle(e).display === 'none')")
    expect("two runs: settings that are equal can be hidden", shown)
    shot(page, "two-runs")


def check_hostile(page, sftrun, folder):
    run = write_run(folder / "<img src=x onerror=alert(1)>", 50, model=NASTY)
    (run / "answers").mkdir()
    messages = [{"role": "user", "content": NASTY}, {"role": "assistant", "content": f"{NASTY} wanted"}]
    for name in ("before", "after"):
        (run / f"answers/{name}.jsonl").write_text(json.dumps({"messages": messages, "generated": f"{NASTY} {name}"}) + "\n")
    (run / "logs").mkdir()
    (run / "logs/rank-0.log").write_text(f"[12:03:04.118] [warning] {NASTY}\n")
    with open(run / "metrics.jsonl", "a") as metrics:
        metrics.write(json.dumps({"step": 51, "loss": 1.0, NASTY: 3.0}) + "\n")
    with open(run / "config.resolved.yaml", "ab") as settings:
        settings.write(f"output:\n  dir: {json.dumps(NASTY)}\n".encode())
    report(sftrun, run)
    page.open(run / "report.html")
    text = page.evaluate("document.body.innerText")
    expect("hostile: nothing is executed", page.evaluate("window.wasRun === undefined && document.querySelectorAll('img').length === 0"))
    expect("hostile: shown as text", text.count(NASTY) >= 7, text.count(NASTY))
    expect("hostile: the answers before and after, and the record's own",
           all(f"{NASTY} {which}" in text for which in ("before", "after", "wanted")))


def check_damaged(page, sftrun, folder):
    run = write_run(folder / "damaged", 40)
    lines = (run / "metrics.jsonl").read_text().splitlines()
    lines[4], lines[7] = "{nonsense", "[1, 2]"
    lines[20] = json.dumps({**json.loads(lines[20]), "loss": None, "grad_norm": None})
    (run / "metrics.jsonl").write_text("\n".join([*lines, lines[-1][:40]]))
    (run / "run.json").write_text('{"status": "runn')
    (run / "config.resolved.yaml").unlink()
    said = report(sftrun, run)
    expect("damaged: said", all(part in said for part in (
        "has 2 lines that could not be read and are left out, the first is line 5", "the last line of metrics.jsonl is incomplete",
        "NaN or infinite values", "cannot read run.json")), said)
    page.open(run / "report.html")
    expect("damaged: the curves are drawn", min(page.evaluate(DRAWN)) > 50)
    bare = folder / "bare"
    bare.mkdir()
    expect("damaged: no run", "not a run directory" in report(sftrun, bare, code=3))
    (bare / "run.json").write_text('{"status": "running"}')
    expect("damaged: a run before its first step", "no optimizer step has been recorded" in report(sftrun, bare))
    page.open(bare / "report.html")
    expect("damaged: a page without charts", page.evaluate("document.querySelectorAll('figure').length") == 0)


def check_long(page, sftrun, folder, steps):
    run = folder / "long"
    run.mkdir()
    generator = random.Random(3)
    with open(run / "metrics.jsonl", "w") as metrics:
        for step in range(1, steps + 1):
            loss = 9.5 if step == steps // 3 else 2 + generator.random()
            metrics.write(f'{{"step":{step},"loss":{loss:.6f},"grad_norm":{generator.random():.6f},"tokens":1000,"step_seconds":0.1,'
                          f'"peak_memory_bytes":[1000,2000]}}\n')
    report(sftrun, run)
    size = (run / "report.html").stat().st_size
    expect(f"long: a page of {size / 1e6:.1f} MB for {steps} steps", size < 2e6)
    page.open(run / "report.html")
    milliseconds = page.evaluate("(() => { const begin = performance.now(); const e = document.getElementById('smoothing');"
                                 "e.value = '0.5'; e.dispatchEvent(new Event('input')); return performance.now() - begin; })()")
    print(f"     drawing it again: {milliseconds:.0f} ms")
    data = json.loads(page.evaluate("document.getElementById('data').textContent"))
    expect("long: the one high value is among the points that are drawn", 9.5 in data["charts"][0]["curves"][0]["y"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True, type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=100_000, help="of the long run")
    parser.add_argument("--screenshots", type=pathlib.Path, help="write pictures of the pages into this folder")
    options = parser.parse_args()
    if chromium.find() is None:
        print("SKIPPED: no Chromium; `scripts/bootstrap.sh --reference` installs it")
        return SKIPPED
    sftrun = options.sftrun.resolve()

    def shot(page, name):
        if options.screenshots:
            options.screenshots.mkdir(exist_ok=True)
            page.screenshot(options.screenshots / f"{name}.png")

    with tempfile.TemporaryDirectory(prefix="sftrun-report-") as scratch, chromium.Browser() as page:
        folder = pathlib.Path(scratch)
        check_one_run(page, sftrun, folder)
        if page.evaluate("typeof Dygraph") == "undefined":
            print("SKIPPED: this build has no dygraphs; `scripts/bootstrap.sh` installs it")
            return SKIPPED
        shot(page, "one-run")
        check_zoom(page)
        check_colours(page)
        page.show(1280, 900, "dark")
        shot(page, "dark")
        page.show(1280, 900)
        check_phone(page, shot)
        check_two_runs(page, sftrun, folder, shot)
        check_hostile(page, sftrun, folder)
        check_damaged(page, sftrun, folder)
        check_long(page, sftrun, folder, options.steps)
        messages = [text for text in page.messages if "getImageData" not in text]  # DRAWN reads the canvas
        expect("console: no message of any page", not messages, messages)
        elsewhere = [url for url in page.requests if not url.startswith("file:")]
        expect("network: nothing was asked for", not elsewhere, elsewhere)
    print(f"{len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
