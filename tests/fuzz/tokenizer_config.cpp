#include <array>
#include <string>
#include <vector>

#include "fuzz.h"
#include "memory_file.h"
#include "sftrun/core/file.h"
#include "sftrun/tokenizer/tokenizer.h"
#include "support/temporary_directory.h"

namespace {

using namespace sftrun;

/// One field of a message, its length below 128 (https://protobuf.dev/programming-guides/encoding).
std::string field(int number, const std::string& bytes) {
  return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(bytes.size())} + bytes;
}

/// A SentencePiece model, of type unigram.
std::string sentencepiece_model() {
  std::string model;
  for (const std::string text : {"<unk>", "<s>", "</s>", "\u2581", "h", "e", "l", "o", "he", "x"}) {
    const char type = text == "<unk>" ? 2 : text.size() > 2 && text[0] == '<' ? 3 : 1;
    model += field(1, field(1, text) + std::string("\x15\0\0\x80\xbf", 5) + "\x18" + type);
  }
  return model;
}

struct File {
  const char* name;
  std::string content;
};

/// Each kind of tokenizer that a configuration stands beside.
std::vector<std::vector<File>> kinds() {
  return {{{"vocab.json", R"({"h": 0, "e": 1, "he": 2, "l": 3, "o": 4, "<|endoftext|>": 5})"},
           {"merges.txt", "#version: 0.2\nh e\n"}},
          {{"tokenizer.model", sentencepiece_model()}},
          {{"tokenizer.model", "aA== 0\nZQ== 1\nbA== 2\nbw== 3\nIA== 4\naGU= 5\n"}},
          {{"tokenizer.json",
            R"({"added_tokens": [{"id": 3, "content": "<s>", "special": true}],
                "model": {"type": "BPE", "vocab": {"h": 0, "e": 1, "he": 2}, "merges": ["h e"]}})"}}};
}

constexpr std::array kConfigurations = {"tokenizer_config.json", "special_tokens_map.json",
                                        "added_tokens.json"};

/// A directory for each kind, with configurations that change from input to input.
struct Directories {
  std::array<fuzz::MemoryFile, kConfigurations.size()> configurations;
  test::TemporaryDirectory root;
  size_t count = 0;

  Directories() {
    for (const std::vector<File>& files : kinds()) {
      const std::filesystem::path folder = path(count++);
      std::filesystem::create_directory(folder);
      for (const File& file : files) write_file_atomically(folder / file.name, file.content);
      for (size_t i = 0; i < kConfigurations.size(); ++i)
        std::filesystem::create_symlink(configurations[i].holding("{}"),
                                        folder / kConfigurations[i]);
    }
  }
  std::filesystem::path path(size_t kind) const { return root / std::to_string(kind); }
};

void use(const tokenizer::Tokenizer& tokenizer) {
  constexpr std::string_view kText = "hello he<s> \u00e9 </s><|endoftext|> <x>  he";
  tokenizer::Encoding encoding;
  bool encodes = false;
  fuzz::expecting_errors([&] {  // a vocabulary without an unknown token
    encoding = tokenizer.encode_with_spans(kText, true);
    encodes = true;
  });
  if (encoding.ids.size() != encoding.spans.size()) __builtin_trap();
  for (const tokenizer::ByteSpan& span : encoding.spans)
    if (span.begin > span.end || span.end > kText.size()) __builtin_trap();
  for (const tokenizer::TokenId id : encoding.ids)
    if (id < 0 || id >= tokenizer.vocab_size()) __builtin_trap();
  for (const auto id : {tokenizer.bos_id(), tokenizer.eos_id()})
    if (id && tokenizer.id_to_token(*id).empty()) __builtin_trap();
  tokenizer.decode(encoding.ids, true);
  const auto written = tokenizer::Tokenizer::from_json(tokenizer.to_json(), "written");
  if (encodes && written.encode(kText, true) != encoding.ids) __builtin_trap();
}

}  // namespace

/// The first byte chooses the vocabulary; then tokenizer_config.json, special_tokens_map.json and
/// added_tokens.json, with a NUL between them. What loads encodes, and is written to a
/// tokenizer.json that encodes the same.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  static const Directories directories;
  std::string_view rest = fuzz::text_of(data + 1, size - 1);
  for (const fuzz::MemoryFile& file : directories.configurations) {
    const std::string_view part = rest.substr(0, rest.find('\0'));
    rest.remove_prefix(std::min(part.size() + 1, rest.size()));
    file.holding(part.empty() ? "{}" : part);
  }
  fuzz::expecting_errors([&] {
    use(tokenizer::Tokenizer::from_directory(directories.path(data[0] % directories.count)));
  });
  return 0;
}
