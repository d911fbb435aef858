/// Runs our tokenizer over many strings for tests/parity/tokenizers_parity.py.
///     tokenize_lines (--json tokenizer.json | --gguf-vocab vocab.json) [--decode | --spans |
///     --to-json | --bench SECONDS]
/// Reads records from standard input, each a 32-bit length (little-endian) and that many bytes;
/// writes a JSON line for each: [ids, ids with special tokens, decoded, decoded without special
/// tokens], or with --spans [ids, spans].
/// --decode: a record is ids (32 bits each); the line is [decoded, decoded without special tokens].
/// --to-json: writes the tokenizer.json. --bench: encodes all records again and again; writes bytes
/// per second of processor time.
#include <fmt/format.h>

#include <cstdio>
#include <cstring>
#include <ctime>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/text/tokenizer.h"

namespace {

using nlohmann::json;
using sftrun::text::GgufVocab;
using sftrun::text::TokenId;
using sftrun::text::Tokenizer;

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

json encode_line(const Tokenizer& tokenizer, const std::string& record) {
  const auto ids = tokenizer.encode(record, false);
  const auto with_special = tokenizer.encode(record, true);
  return json::array(
      {ids, with_special, tokenizer.decode(ids, false), tokenizer.decode(with_special, true)});
}

json spans_line(const Tokenizer& tokenizer, const std::string& record) {
  const auto encoding = tokenizer.encode_with_spans(record, true);
  json spans = json::array();
  for (const auto& span : encoding.spans) spans.push_back({span.begin, span.end});
  return json::array({encoding.ids, spans});
}

json decode_line(const Tokenizer& tokenizer, const std::string& record) {
  std::vector<TokenId> ids(record.size() / sizeof(TokenId));
  if (!ids.empty()) std::memcpy(ids.data(), record.data(), ids.size() * sizeof(TokenId));
  return json::array({tokenizer.decode(ids, false), tokenizer.decode(ids, true)});
}

/// Processor time, so that a busy machine does not change the answer.
void bench(const Tokenizer& tokenizer, const std::vector<std::string>& records, double seconds) {
  const auto seconds_since = [](std::clock_t start) {
    return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  };
  size_t num_bytes = 0;
  const std::clock_t start = std::clock();
  do {
    for (const std::string& record : records) {
      tokenizer.encode(record, false);
      num_bytes += record.size();
    }
  } while (seconds_since(start) < seconds);
  fmt::print("{:.0f}\n", static_cast<double>(num_bytes) / seconds_since(start));
}

int run(const std::vector<std::string>& args) {
  if (args.size() < 3 || (args[1] != "--json" && args[1] != "--gguf-vocab")) {
    fmt::print(stderr,
               "usage: tokenize_lines (--json FILE | --gguf-vocab FILE) "
               "[--decode|--spans|--to-json|--bench SECONDS]\n");
    return 2;
  }
  const Tokenizer tokenizer = args[1] == "--json"
                                  ? Tokenizer::from_json(sftrun::read_text_file(args[2]), args[2])
                                  : load_gguf_vocab(args[2]);
  const std::string mode = args.size() > 3 ? args[3] : "";
  if (mode == "--to-json") {
    std::cout << tokenizer.to_json();
    return 0;
  }
  const auto records = read_records();
  if (mode == "--bench") {
    bench(tokenizer, records, std::stod(args.at(4)));
    return 0;
  }
  for (const std::string& record : records) {
    const json line = mode == "--spans"    ? spans_line(tokenizer, record)
                      : mode == "--decode" ? decode_line(tokenizer, record)
                                           : encode_line(tokenizer, record);
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
