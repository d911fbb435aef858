/// Runs our tokenizer over many strings for tests/parity/tokenizers_parity.py.
///     tokenize_lines (--json tokenizer.json | --directory DIR | --gguf-vocab vocab.json)
///     [--mixed | --to-json | --bench SECONDS [THREADS]]
/// Reads records from standard input, each a 32-bit length (little-endian) and that many bytes;
/// writes a JSON line for each: [ids, ids with special tokens, decoded, decoded without special
/// tokens].
/// --mixed: the first byte of a record says what is asked, so that the vocabulary is loaded once:
///   t a text, answered as above          s a text: [ids, spans]
///   d ids (32 bits each): [decoded, decoded without special tokens]
///   j nothing: the tokenizer.json, as a string
///   n nothing: the class of transformers that splits otherwise, or null
///   c a text: whether its tokens differ in that class
/// --to-json: writes the tokenizer.json. --bench: encodes all records with spans, as training does,
/// again and again on each of the threads; writes bytes per second of wall-clock time, in all.
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <thread>

#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/tokenizer/tokenizer.h"

namespace {

using nlohmann::json;
using sftrun::tokenizer::GgufVocab;
using sftrun::tokenizer::TokenId;
using sftrun::tokenizer::Tokenizer;

Tokenizer load_gguf_vocab(const std::string& path) {
  const json document = json::parse(sftrun::read_text_file(path));
  GgufVocab vocab;
  vocab.model = document.at("model");
  vocab.pre = document.at("pre");
  vocab.tokens = document.at("tokens").get<std::vector<std::string>>();
  vocab.merges = document.at("merges").get<std::vector<std::string>>();
  vocab.token_types = document.at("token_types").get<std::vector<int32_t>>();
  if (document.contains("bos")) vocab.bos = document.at("bos").get<TokenId>();
  if (document.contains("eos")) vocab.eos = document.at("eos").get<TokenId>();
  if (document.contains("unk")) vocab.unk = document.at("unk").get<TokenId>();
  vocab.scores = document.value("scores", std::vector<float>());
  vocab.add_space_prefix = document.value("add_space_prefix", true);
  vocab.add_bos = document.value("add_bos", false);
  vocab.add_eos = document.value("add_eos", false);
  return Tokenizer::from_gguf(vocab, path);
}

std::vector<std::string> read_records() {
  const std::string input(std::istreambuf_iterator<char>(std::cin), {});
  std::vector<std::string> records;
  for (size_t i = 0; i + 4 <= input.size();) {
    uint32_t length = 0;
    std::memcpy(&length, input.data() + i, 4);
    records.push_back(input.substr(i + 4, length));
    i += 4 + length;
  }
  return records;
}

json encode_line(const Tokenizer& tokenizer, std::string_view record) {
  const auto ids = tokenizer.encode(record, false);
  const auto with_special = tokenizer.encode(record, true);
  return json::array(
      {ids, with_special, tokenizer.decode(ids, false), tokenizer.decode(with_special, true)});
}

json spans_line(const Tokenizer& tokenizer, std::string_view record) {
  const auto encoding = tokenizer.encode_with_spans(record, true);
  json spans = json::array();
  for (const auto& span : encoding.spans) spans.push_back({span.begin, span.end});
  return json::array({encoding.ids, spans});
}

json decode_line(const Tokenizer& tokenizer, std::string_view record) {
  std::vector<TokenId> ids(record.size() / sizeof(TokenId));
  if (!ids.empty()) std::memcpy(ids.data(), record.data(), ids.size() * sizeof(TokenId));
  return json::array({tokenizer.decode(ids, false), tokenizer.decode(ids, true)});
}

json mixed_line(const Tokenizer& tokenizer, std::string_view record) {
  if (record.empty()) throw sftrun::DataError("an empty record", "standard input");
  const std::string_view rest = record.substr(1);
  switch (record.front()) {
    case 't':
      return encode_line(tokenizer, rest);
    case 's':
      return spans_line(tokenizer, rest);
    case 'd':
      return decode_line(tokenizer, rest);
    case 'j':
      return tokenizer.to_json();
    case 'n': {
      const auto* difference = tokenizer.class_difference();
      return difference != nullptr ? json(difference->class_name) : json();
    }
    case 'c':
      return tokenizer.differs_in_class(rest);
    default:
      throw sftrun::DataError("not a kind of record", std::string(record.substr(0, 1)));
  }
}

using Clock = std::chrono::steady_clock;

void bench(const Tokenizer& tokenizer, const std::vector<std::string>& records, double seconds,
           size_t num_threads) {
  std::atomic<size_t> num_bytes = 0;
  const auto start = Clock::now();
  const auto passed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  const auto work = [&] {
    for (size_t i = 0; passed() < seconds; i = (i + 1) % records.size()) {
      tokenizer.encode_with_spans(records[i], false);
      num_bytes += records[i].size();
    }
  };
  std::vector<std::thread> threads;
  for (size_t i = 0; i < num_threads; ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  fmt::print("{:.0f}\n", static_cast<double>(num_bytes) / passed());
}

Tokenizer load(const std::string& kind, const std::string& path) {
  if (kind == "--directory") return Tokenizer::from_directory(path);
  if (kind == "--gguf-vocab") return load_gguf_vocab(path);
  return Tokenizer::from_json(sftrun::read_text_file(path), path);
}

int run(const std::vector<std::string>& args) {
  if (args.size() < 3 ||
      (args[1] != "--json" && args[1] != "--directory" && args[1] != "--gguf-vocab")) {
    fmt::print(stderr,
               "usage: tokenize_lines (--json FILE | --directory DIR | --gguf-vocab FILE) "
               "[--mixed|--to-json|--bench SECONDS [THREADS]]\n");
    return 2;
  }
  const Tokenizer tokenizer = load(args[1], args[2]);
  const std::string mode = args.size() > 3 ? args[3] : "";
  if (mode == "--to-json") {
    std::cout << tokenizer.to_json();
    return 0;
  }
  const auto records = read_records();
  if (mode == "--bench") {
    bench(tokenizer, records, std::stod(args.at(4)), args.size() > 5 ? std::stoul(args[5]) : 1);
    return 0;
  }
  for (const std::string& record : records) {
    const json line =
        mode == "--mixed" ? mixed_line(tokenizer, record) : encode_line(tokenizer, record);
    std::cout << line.dump() << '\n';
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv, argv + argc});
  } catch (const sftrun::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return static_cast<int>(error.code());
  }
}
