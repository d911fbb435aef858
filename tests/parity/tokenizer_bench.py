"""How fast both sides tokenize the same documents."""
import os
import time

from fuzz_text import CODE, SENTENCES, FuzzText
from tokenize_helper import run_helper


def use_two_threads():
    """To be called before the library is used: it reads the number once, when it starts its threads."""
    os.environ["RAYON_NUM_THREADS"] = "2"


def library_rate(tokenizer, documents, num_bytes, threads):
    """The faster of the library's two ways, of which encode_batch_fast gives no offsets; bytes a second of wall-clock time."""
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if threads > 1 else "false"
    rates = []
    for encode in (tokenizer.encode_batch, tokenizer.encode_batch_fast):
        start, rounds = time.perf_counter(), 0
        while time.perf_counter() - start < 1.0:
            encode(documents, add_special_tokens=False)
            rounds += 1
        rates.append(rounds * num_bytes / (time.perf_counter() - start))
    return max(rates)


def bench(helper, source, tokenizer, name):
    """The same documents, interleaved; megabytes a second of wall-clock time, on one thread and on two. A quiet machine is needed."""
    fuzz = FuzzText("bench")
    documents = ["\n".join(fuzz.pseudo_words() for _ in range(60)) for _ in range(150)] + ["\n".join(SENTENCES + CODE)] * 3
    records = [d.encode() for d in documents]
    num_bytes = sum(map(len, records))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    ours, theirs = {1: [], 2: []}, {1: [], 2: []}
    for _ in range(3):
        for threads in (1, 2):
            ours[threads].append(float(run_helper(helper, source, records, "--bench", "1.0", str(threads))))
            theirs[threads].append(library_rate(tokenizer, documents, num_bytes, threads))
    best = [max(rates[threads]) / 1e6 for rates in (ours, theirs) for threads in (1, 2)]
    print(f"{name}: ours {best[0]:.1f} MB/s with spans, two threads {best[1]:.1f} ({best[1] / best[0]:.2f} times); "
          f"tokenizers {best[2]:.1f}, two threads {best[3]:.1f}; {best[0] / best[2]:.1f} and {best[1] / best[3]:.1f} times as fast", flush=True)
