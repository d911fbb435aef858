#!/usr/bin/env python3
"""What the compiler makes of every CUDA kernel: registers, spills, shared memory, and how wide it reads and writes.

    scripts/gpu/kernel_report.py                                          # prints the table
    scripts/gpu/kernel_report.py --write                                  # puts it into docs/gpu-status.md
    scripts/gpu/kernel_report.py --check --archs 90a --cache build/kernel-report
    scripts/gpu/kernel_report.py --check-sources                          # compiles nothing

--check-sources fails if sources or flags have changed since the table was written. --check fails where the table is out of date, a kernel spills or has a stack (on any architecture of the table), a kernel is not
named in RULES, or one that RULES holds to wide loads or stores has none of 16 bytes. Needs nvcc and c++filt and no GPU. Flags are those of src/cuda/CMakeLists.txt (with the
variables of cmake/) and of a release build. Widths are counted in PTX, each instruction once: of those on a path for what is left over, too.
Standard library only.
"""

import argparse
import collections
import concurrent.futures
import fnmatch
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
CMAKE = "src/cuda/CMakeLists.txt"
TARGET = "sftrun_cuda_kernels"
DOCUMENT = ROOT / "docs/gpu-status.md"
BEGIN, END = "<!-- kernels: begin -->", "<!-- kernels: end -->"
ARCHS = ("80", "89", "90a", "120")
WIDE = 16  # bytes: the most that a thread reads at once on every architecture
VERSION = 2  # of what the cache holds

LOADS, STORES, FREE = "loads", "stores", "free"
# Kernel with its template's arguments as a pattern, what must be of 16 bytes somewhere in it, and why; the first that fits.
# Instantiations for fp32 alone are not held to it. A kernel that no line fits fails the check.
FALLBACK = "where sizes or addresses are no whole vectors"
RULES = (
    ("*[!_a-z]1>", (FREE,), FALLBACK),
    ("heads_*, 1, *", (FREE,), FALLBACK),
    ("adapter_grads<*, 1, *", (FREE,), FALLBACK),
    ("sum_chunk<false>", (FREE,), FALLBACK),
    ("dequantize_*_singly*", (FREE,), FALLBACK),
    ("rms_norm_forward*", (LOADS,), "reads a row and writes it, a few operations for each value"),
    ("rms_norm_backward*", (LOADS,), "reads up to four rows and writes one"),
    ("gated_forward*", (LOADS,), "reads two arrays, writes one"),
    ("gated_backward*", (LOADS,), "reads three arrays, writes two"),
    ("heads_*", (LOADS,), "reads and writes every query and key, a few operations for each value"),
    ("adapter_grads*", (LOADS, STORES), "reads activations and their gradients once, for a rank's columns; adds to fp32 sums"),
    ("low_rank_sum*", (LOADS, STORES), "reads and writes the result once, a few operations for each value"),
    ("cross_entropy*", (LOADS,), "reads the logits twice, which are the largest tensor of a step"),
    ("dropout*", (LOADS,), "reads and writes every value once"),
    ("embedding_noise*", (LOADS,), "reads and writes every value once"),
    ("adamw_8bit*", (LOADS,), "reads parameter, gradient and two codes, writes three of them"),
    ("adamw*", (LOADS,), "reads four arrays of fp32, writes three and the copy"),
    ("sum_chunk*", (LOADS,), "reads every gradient once"),
    ("sum_partials*", (FREE,), "one block; a number for each 64 Ki of the gradient"),
    ("decide_update*", (FREE,), "one block; a number for each micro-batch of a step"),
    ("dequantize_*", (LOADS, STORES), "writes two bytes for each value, and reads a quarter to a half of that"),
    ("round_to_e4m3*", (LOADS,), "reads a row twice, writes a byte for each value"),
    ("thin_product*", (LOADS,), "reads a matrix once for a few rows of products"),
    ("copy_matrices*", (LOADS, STORES), "reads and writes every value once"),
    ("route_tokens*", (FREE,), "a warp reads a token's logits, a few hundred numbers, again and again from the caches"),
    ("sort_routes*", (LOADS,), "each block reads all choices twice"),
    ("spread_rows<unsigned *", (FREE,), FALLBACK),
    ("spread_rows*", (LOADS, STORES), "reads a token's row once, writes it for each expert"),
    ("sum_rows*", (LOADS, STORES), "reads a token's rows, writes their sum"),
    ("add_expert_bias*", (LOADS, STORES), "reads and writes rows, a sum for each value"),
    ("add_expert_products*", (LOADS, STORES), "reads two arrays, writes one"),
    ("add_expert_sums*", (FREE,), "of trained biases alone; lanes read columns that lie together"),
    ("weighted_gated_backward*", (LOADS, STORES), "reads three arrays, writes two, a few operations for each value"),
    ("gated_output_backward*", (LOADS, STORES), "reads two arrays, writes one"),
    ("attention_*", (LOADS,), "reads tiles of queries, keys and values again and again, from the cache"),
    ("transpose_codes<false>", (FREE,), FALLBACK),
    ("transpose_codes*", (LOADS, STORES), "reads and writes every byte once"),
    ("grouped_scalar*", (FREE,), FALLBACK),
    ("grouped_gradients*", (LOADS,), "tiles through shared memory; adds to fp32 sums where tensor cores leave them, in pairs"),
    ("grouped_tiles*", (LOADS, STORES), "tiles through shared memory; codes are loaded as words of their rows"),
)


# ---- What src/cuda/CMakeLists.txt says


def cmake_commands(text):
    """(name, [arguments]) of every command whose arguments hold no parentheses."""
    text = re.sub(r"#[^\n]*", "", text)
    return [(name.lower(), re.findall(r'"[^"]*"|\S+', arguments)) for name, arguments in re.findall(r"(\w+)\s*\(([^()]*)\)", text)]


class Variables:
    """What set() and list() have put into CMake's variables; the last one holds where several branches do."""

    def __init__(self):
        self.values = {"PROJECT_SOURCE_DIR": [str(ROOT)]}

    def expand(self, arguments):
        """What is not known stays as it is."""
        result = []
        for argument in (argument.strip('"') for argument in arguments):
            whole = re.fullmatch(r"\$\{(\w+)\}", argument)
            if whole and whole[1] in self.values:
                result += self.values[whole[1]]
            else:
                result.append(re.sub(r"\$\{(\w+)\}", lambda match: ";".join(self.values.get(match[1], [match[0]])), argument))
        return result

    def note(self, name, arguments):
        if name == "set" and arguments and "$" not in arguments[0]:
            end = next((i for i, argument in enumerate(arguments) if argument in ("CACHE", "PARENT_SCOPE")), len(arguments))
            self.values[arguments[0]] = arguments[1:end]
        elif name == "list" and arguments[0] == "APPEND":
            self.values.setdefault(arguments[1], []).extend(arguments[2:])
        elif name == "list" and arguments[0] == "TRANSFORM" and len(arguments) == 4 and arguments[2] in ("PREPEND", "APPEND"):
            before, after = (arguments[3], "") if arguments[2] == "PREPEND" else ("", arguments[3])
            self.values[arguments[1]] = [before + value + after for value in self.values.get(arguments[1], [])]


class Build:
    """Sources and flags of the kernels, as CMake's files have them."""

    def __init__(self):
        self.flags, self.file_flags, self.sources, self.standard = [], collections.defaultdict(list), [], None
        variables = Variables()
        for path in (*sorted((ROOT / "cmake").glob("*.cmake")), ROOT / CMAKE):
            for name, given in cmake_commands(path.read_text()):
                arguments = variables.expand(given)
                variables.note(name, arguments)
                if path == ROOT / CMAKE:
                    self.read(name, arguments)
        if not self.sources or self.standard is None or not any(flag.startswith("-I") for flag in self.flags):
            sys.exit(f"error: {CMAKE} does not say what {TARGET} is compiled of\n  fix: adapt scripts/gpu/kernel_report.py to what it says now")
        missing = [str(source) for source in self.file_flags if source not in self.sources and source.suffix in (".cu", "")]
        if missing:
            sys.exit(f"error: {CMAKE} has options for {', '.join(missing)}, which is no kernel's file")
        self.flags += [f"-std=c++{self.standard}", "-O3", "-DNDEBUG"]  # the latter two: CMake's of a release

    def read(self, name, arguments):
        if name == "file" and arguments[:2] == ["GLOB", "kernel_sources"]:
            patterns = [argument for argument in arguments[2:] if argument.endswith(".cu")]
            self.sources = sorted(path for pattern in patterns for path in ROOT.glob(str(pathlib.Path(pattern).relative_to(ROOT))))
        elif name == "set_target_properties" and arguments[0] == TARGET and "CUDA_STANDARD" in arguments:
            self.standard = arguments[arguments.index("CUDA_STANDARD") + 1]
        elif name == "target_include_directories" and arguments[0] == TARGET:
            self.flags += [f"-I{argument}" for argument in self.plain(arguments[2:])]
        elif name == "target_compile_definitions" and arguments[0] == TARGET:
            self.flags += [f"-D{argument.removeprefix('-D')}" for argument in self.plain(arguments[2:])]
        elif name == "target_compile_options" and arguments[0] == TARGET:
            self.flags += self.plain(arguments[2:])
        elif name == "set_source_files_properties" and "COMPILE_OPTIONS" in arguments:
            flags = arguments[arguments.index("COMPILE_OPTIONS") + 1].split(";")
            for source in arguments[: arguments.index("PROPERTIES")]:
                self.file_flags[pathlib.Path(source)] += self.plain(flags)

    @staticmethod
    def plain(arguments):
        """What is for nvcc, without CMake's expressions; others than the language's are not known here."""
        result = []
        for argument in arguments:
            match = re.fullmatch(r"\$<\$<COMPILE_LANGUAGE:(\w+)>:([^<>]*)>", argument)
            if match:
                result += match[2].split(";") if match[1] == "CUDA" else []
            elif "$" in argument:
                sys.exit(f"error: {CMAKE} has {argument}, which scripts/gpu/kernel_report.py cannot read")
            else:
                result.append(argument)
        return result

    def flags_of(self, source):
        return self.flags + self.file_flags.get(source, [])


# ---- What the compiler says


def resources(log):
    """Mangled name -> registers, bytes of stack, spills and shared memory, of ptxas' report."""
    found = {}
    for part in log.split("Compiling entry function '")[1:]:
        name = part.split("'", 1)[0]
        # Functions that are called have properties of their own, before or after.
        own = part.split(f"Function properties for {name}\n")[1]
        stack, stores, loads = map(int, re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", own).groups())
        used = re.search(r"Used (\d+) registers(.*)", own)
        shared = re.search(r"(\d+) bytes smem", used[2])
        found[name] = {"registers": int(used[1]), "stack": stack, "spill_stores": stores, "spill_loads": loads, "shared": int(shared[1]) if shared else 0}
    return found


MEMORY = re.compile(r"(?:^|[\s;{}])(ld|st)((?:\.[\w:]+)*?)(?:\.(v[248]))?\.(?:[busf])(8|16|32|64|128)\s")
ASYNC = re.compile(r"cp\.async\.c[ag]\.shared(?:::cta)?\.global[\w.:]*\s+\[[^\]]*\],\s*\[[^\]]*\],\s*(\d+)")
BULK = re.compile(r"cp\.async\.bulk\.(?:tensor\.\w+\.)?shared[\w:]*\.global")


def accesses(ptx):
    """Name of each function in PTX -> {"loads": {bytes: instructions}, "stores": …} of global memory, its callees' included."""
    bodies = {}
    for match in re.finditer(r"^[^\n/]*\.(entry|func)\s+(?:\([^)]*\)\s*)?([\w$]+)\s*(?:\([^)]*\))?[^;{]*\{(.*?)^\}", ptx, re.M | re.S):
        bodies[match[2]] = (match[1], match[3])

    def counted(body):
        counts = {LOADS: collections.Counter(), STORES: collections.Counter()}
        for access, qualifiers, vector, bits in MEMORY.findall(body):
            spaces = re.findall(r"\.(param|shared|local|const)\b", qualifiers)
            if not spaces:  # global, or of any space, which is then global memory in what these kernels do
                counts[LOADS if access == "ld" else STORES][int(bits) // 8 * int(vector[1:] or 1 if vector else 1)] += 1
        counts[LOADS].update(int(size) for size in ASYNC.findall(body))
        counts[LOADS].update([WIDE] * len(BULK.findall(body)))
        return counts

    own = {name: counted(body) for name, (_, body) in bodies.items()}
    functions = [name for name, (kind, _) in bodies.items() if kind == "func"]
    result = {}
    for name, (kind, _) in bodies.items():
        if kind != "entry":
            continue
        reached, waiting = set(), [name]
        while waiting:
            at = waiting.pop()
            if at not in reached:
                reached.add(at)
                waiting += [other for other in functions if re.search(rf"\b{re.escape(other)}\b", bodies[at][1])] if functions else []
        result[name] = {what: dict(sum((own[at][what] for at in reached), collections.Counter())) for what in (LOADS, STORES)}
    return result


def short_names(mangled):
    """Without namespaces, return type and parameters: rms_norm_forward<__half>."""
    lines = subprocess.run(["c++filt"], input="\n".join(mangled), capture_output=True, text=True, check=True).stdout.splitlines()
    names = {}
    for key, line in zip(mangled, lines):
        line = line.replace("(anonymous namespace)::", "")
        depth, end = 0, len(line)
        for i, letter in enumerate(line):  # up to the parameters
            depth += (letter == "<") - (letter == ">")
            if letter == "(" and depth == 0:
                end = i
                break
        head, bracket, tail = re.sub(r"\((?:int|bool|unsigned int)\)", "", line[:end]).partition("<")
        names[key] = head.split()[-1].split("::")[-1] + bracket + re.sub(r"(?:\w+::)+", "", tail)
    return names


def digest(data):
    return hashlib.sha256(data).hexdigest()


def dependencies(text):
    """Files of a makefile's rule."""
    return [pathlib.Path(name) for name in text.replace("\\\n", " ").split(":", 1)[1].split()]


INCLUDE = re.compile(rb'^#include "([^"]+)"', re.M)


def project_files(source):
    """A kernel's file and the headers of the project that it includes, of those the compiler of CUDA sees."""
    found, waiting = set(), [source]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            for name in INCLUDE.findall(path.read_bytes()):
                places = (folder / name.decode() for folder in (path.parent, ROOT / "include", ROOT / "src/kernels"))
                waiting += [place for place in places if place.is_file()][:1]
    return found


def digest_of_sources(build):
    """Of what the table depends on but for the compiler."""
    entries = [VERSION, *([str(path.relative_to(ROOT)), digest(path.read_bytes())] for path in sorted(set().union(*map(project_files, build.sources)))),
               *([str(source.relative_to(ROOT)), build.flags_of(source)] for source in build.sources)]
    return digest(json.dumps(entries, ensure_ascii=False).replace(str(ROOT), "").encode())


class Compiler:
    def __init__(self, nvcc, build, cache):
        self.nvcc, self.build, self.cache = nvcc, build, cache
        text = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
        self.version = re.search(r"release ([\d.]+), V([\d.]+)", text)
        if cache:
            cache.mkdir(parents=True, exist_ok=True)

    def entry(self, source, arch):
        key = [VERSION, self.version[2], arch, str(source.relative_to(ROOT)), self.build.flags_of(source)]
        return self.cache / f"{source.stem}-{arch}-{digest(json.dumps(key).encode())[:16]}.json"

    def cached(self, source, arch):
        """The kernels of a file as they were, while neither it nor a header of the project has changed."""
        try:
            entry = json.loads(self.entry(source, arch).read_text())
            same = all(digest((ROOT / path).read_bytes()) == known for path, known in entry["files"].items())
        except (OSError, ValueError, KeyError):
            return None
        return entry["kernels"] if same else None

    def kernels(self, source, arch):
        """[{name, registers, …, loads, stores}] of one file."""
        if self.cache and (found := self.cached(source, arch)) is not None:
            return found
        with tempfile.TemporaryDirectory() as scratch:
            folder = pathlib.Path(scratch)
            command = [self.nvcc, *self.build.flags_of(source), f"--generate-code=arch=compute_{arch},code=[sm_{arch}]", "-Xptxas", "-v", "-MMD", "-MF",
                       str(folder / "rule.d"), "--keep", "--keep-dir", str(folder), "-cubin", "-o", str(folder / "code.cubin"), str(source)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                raise RuntimeError(f"{source.relative_to(ROOT)} does not compile for sm_{arch}:\n{done.stdout}{done.stderr}")
            used = resources(done.stdout + done.stderr)
            memory = accesses((folder / f"{source.stem}.ptx").read_text())
            files = {source, *(path.resolve() for path in dependencies((folder / "rule.d").read_text()))}
        if set(used) != set(memory):
            raise RuntimeError(f"{source.relative_to(ROOT)}: the compiler's report and PTX name other kernels")
        names = short_names(sorted(used))
        found = [{"name": names[key], **used[key], **{what: {str(size): n for size, n in memory[key][what].items()} for what in (LOADS, STORES)}} for key in sorted(used)]
        if self.cache:
            inside = {str(path.relative_to(ROOT)): digest(path.read_bytes()) for path in sorted(files) if path.is_relative_to(ROOT)}
            target = self.entry(source, arch)
            part = target.with_suffix(f".{os.getpid()}.part")
            part.write_text(json.dumps({"files": inside, "kernels": found}))
            part.replace(target)
        return found


# ---- What is held against it


def is_held(name):
    """Whether a kernel has elements of 16 bits, or of no type that it is compiled for."""
    arguments = name.partition("<")[2]
    return bool(re.search(r"__half|__nv_bfloat16", arguments)) or not re.search(r"\bfloat\b", arguments)


def widest(sizes):
    return max((int(size) for size in sizes), default=0)


def rule_of(name):
    return next((rule for rule in RULES if fnmatch.fnmatchcase(name, rule[0])), None)


def failures(kernels, arch):
    lines = []
    for kernel in sorted(kernels, key=lambda kernel: kernel["name"]):
        name, rule = kernel["name"], rule_of(kernel["name"])
        if kernel["spill_stores"] or kernel["spill_loads"]:
            lines.append(f"sm_{arch} {name}: spills {kernel['spill_stores']} bytes, reads back {kernel['spill_loads']}")
        elif kernel["stack"]:
            lines.append(f"sm_{arch} {name}: {kernel['stack']} bytes on the stack, which is in memory (an array whose places are computed?)")
        if rule is None:
            lines.append(f"sm_{arch} {name}: no line of RULES in scripts/gpu/kernel_report.py says whether it is bound by memory")
            continue
        narrow = [f"{what} of at most {widest(kernel[what])} bytes" for what in rule[1] if what != FREE and is_held(name) and widest(kernel[what]) < WIDE]
        if narrow:
            lines.append(f"sm_{arch} {name}: {' and '.join(narrow)}, not {WIDE} ({rule[2]})")
    return lines


def unused_rules(by_arch):
    names = {kernel["name"] for kernels in by_arch.values() for kernel in kernels}
    used = {rule_of(name) for name in names}
    return [f"RULES names {rule[0]}, but there is no such kernel" for rule in RULES if rule not in used]


# ---- The table


def widths(kernels, what):
    """The narrowest of the kernels' widest accesses, and what most instructions have."""
    held = [kernel for kernel in kernels if is_held(kernel["name"]) and rule_of(kernel["name"])[2] != FALLBACK] or kernels
    counts = sum((collections.Counter(kernel[what]) for kernel in held), collections.Counter())
    if not counts:
        return "-"
    most = max(counts.items(), key=lambda item: (item[1], int(item[0])))[0]
    return f"{min(widest(kernel[what]) for kernel in held)}/{most}"


def cell(kernels):
    def most(key):
        return max(kernel[key] for kernel in kernels)

    text = f"{most('registers')} · {most('shared')} · {widths(kernels, LOADS)} · {widths(kernels, STORES)}"
    if most("stack"):
        text += f", stack {most('stack')}"
    if most("spill_stores") or most("spill_loads"):
        text += f", **spills {most('spill_stores')}/{most('spill_loads')}**"
    return text


def columns(by_arch):
    """Kernel -> arch -> text of the table, over all that it is compiled for."""
    rows = collections.defaultdict(dict)
    for arch, kernels in by_arch.items():
        groups = collections.defaultdict(list)
        for kernel in kernels:
            groups[kernel["name"].partition("<")[0]].append(kernel)
        for name, group in groups.items():
            rows[name][arch] = cell(group)
            rows[name]["kernels"] = str(len(group))
    return dict(sorted(rows.items()))


SOURCES = re.compile(r"^<!-- sources: (\w+) -->$", re.M)


def render(rows, archs, version, sources):
    lines = [
        f"<!-- sources: {sources} -->",
        f"By scripts/gpu/kernel_report.py, CUDA {version}: registers · bytes of static shared memory (attention, adapter_grads and low_rank_sum use dynamic memory) · loads · stores of global memory, the largest of all",
        "types and formats that a kernel is compiled for. Loads and stores in bytes: the widest that each kernel for 16-bit types has (but those for odd sizes and addresses), and what most",
        "instructions have.",
        "",
        "| kernel | of it | " + " | ".join(f"sm_{arch}" for arch in archs) + " |",
        "|---|---|" + "---|" * len(archs),
    ]
    return "\n".join(lines + [f"| {name} | {row['kernels']} | " + " | ".join(row.get(arch, "-") for arch in archs) + " |" for name, row in rows.items()])


def parse(text):
    """The rows of a table as `columns` makes them, and the version it was made with."""
    version = re.search(r"CUDA ([\d.]+):", text)
    table = [[part.strip() for part in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    if not table or not version:
        return {}, None
    archs = [title.removeprefix("sm_") for title in table[0][2:]]
    return {row[0]: {"kernels": row[1], **dict(zip(archs, row[2:]))} for row in table[2:]}, version[1]


def out_of_date(rows, text, archs, version):
    written, made_with = parse(text)
    if made_with is None:
        return [f"{DOCUMENT.name} has no table of the kernels"]
    if made_with != version:
        print(f"the table is of CUDA {made_with} and this compiler of {version}: not compared")
        return []
    lines = [f"table: {name} is no kernel any more" for name in written if name not in rows]
    for name, row in rows.items():
        for arch in ("kernels", *archs):
            there = written.get(name, {}).get(arch, "nothing")
            if row.get(arch, "-") != there:
                lines.append(f"table: {name}, {'number' if arch == 'kernels' else 'sm_' + arch}: {there}; now {row.get(arch, '-')}")
    return lines


def spills_of_others(text, archs):
    """What the written table says of architectures that were not compiled for: none of them may spill either."""
    written, _ = parse(text)
    return [
        f"table: {name}, sm_{arch}: {said}"
        for name, row in written.items()
        for arch, said in row.items()
        if arch not in ("kernels", *archs) and re.search(r"spills|stack", said)
    ]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the table into the document, all architectures")
    parser.add_argument("--check", action="store_true", help="exit code 1 if anything is to be said against the kernels or the table")
    parser.add_argument("--check-sources", action="store_true", help="exit code 1 if the table was made of other sources or flags; compiles nothing")
    parser.add_argument("--archs", nargs="+", default=list(ARCHS), metavar="ARCH", help=f"[{' '.join(ARCHS)}]")
    parser.add_argument("--cache", type=pathlib.Path, help="folder for what was found of files that stay the same")
    parser.add_argument("--jobs", "-j", type=int, default=min(2, os.cpu_count() or 1), help="compilers at once [at most 2]")
    parser.add_argument("--nvcc", default=os.environ.get("CUDACXX") or shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc")
    parser.add_argument("--document", type=pathlib.Path, default=DOCUMENT)
    arguments = parser.parse_args()
    if arguments.write and set(arguments.archs) != set(ARCHS):
        parser.error(f"--write goes with all of {' '.join(ARCHS)}")
    return arguments


def of_other_sources(text, build):
    made_of = SOURCES.search(text)
    return [] if made_of and made_of[1] == digest_of_sources(build) else ["table: the kernels' sources or flags have changed since it was written"]


def check_sources(document):
    said = of_other_sources(document.read_text(), Build())
    for line in said:
        print(f"FAILED: {line}\n  fix: scripts/gpu/kernel_report.py --write")
    print(f"{document.name}: {len(said)} failures of the table")
    return 1 if said else 0


def main():
    arguments = parse_arguments()
    if arguments.check_sources:
        return check_sources(arguments.document)
    if not shutil.which(arguments.nvcc):
        sys.exit(f"error: no CUDA compiler at {arguments.nvcc}\n  fix: name one: --nvcc")
    compiler = Compiler(arguments.nvcc, Build(), arguments.cache)
    sources = compiler.build.sources
    work = [(source, arch) for arch in arguments.archs for source in sources]
    work.sort(key=lambda item: -item[0].stat().st_size)  # what may take long begins first
    try:
        with concurrent.futures.ThreadPoolExecutor(min(2, max(1, arguments.jobs))) as pool:
            found = list(pool.map(lambda item: compiler.kernels(*item), work))
    except RuntimeError as error:
        sys.exit(f"error: {error}")
    by_arch = {arch: [kernel for (_, of), kernels in zip(work, found) if of == arch for kernel in kernels] for arch in arguments.archs}
    rows, version = columns(by_arch), compiler.version[1]
    text = arguments.document.read_text()
    before, begin, rest = text.partition(BEGIN)
    inside, end, after = rest.partition(END)
    table = render(rows, arguments.archs, version, digest_of_sources(compiler.build))
    if arguments.write:
        if not end:
            before, begin, end, after = text.rstrip("\n") + "\n\n## What the compiler makes of the kernels\n", BEGIN, END, "\n"
        part = arguments.document.with_suffix(".part")
        part.write_text(f"{before}{begin}\n{table}\n{end}{after}")
        part.replace(arguments.document)
        print(f"wrote {len(rows)} kernels into {arguments.document.name}")
    elif not arguments.check:
        print(table)
    if not arguments.check:
        return 0
    stale = [] if arguments.write else out_of_date(rows, inside, arguments.archs, version) + of_other_sources(inside, compiler.build)
    said = [line for arch, kernels in by_arch.items() for line in failures(kernels, arch)] + unused_rules(by_arch)
    said += [] if arguments.write else spills_of_others(inside, arguments.archs)
    for line in said + stale:
        print(f"FAILED: {line}")
    if stale:
        print("  fix: scripts/gpu/kernel_report.py --write")
    total = sum(len(kernels) for kernels in by_arch.values())
    print(f"{total} kernels for {', '.join('sm_' + arch for arch in arguments.archs)}: {len(said)} failures of kernels, {len(stale)} of the table")
    return 1 if said or stale else 0


if __name__ == "__main__":
    sys.exit(main())
