// Vocabularies in other files than tokenizer.json; equal ids on many strings are tests/parity's.
#include "tokenizer_files.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "sftrun/core/base64.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/tokenizer/tokenizer.h"
#include "support/expect_error.h"

namespace sftrun::tokenizer {
namespace {

using Ids = std::vector<TokenId>;

using test::error_of;

/// A model's directory that goes away.
class Directory {
 public:
  explicit Directory(const std::string& name)
      : path_(std::filesystem::path(testing::TempDir()) / ("tokenizer_files_" + name)) {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~Directory() { std::filesystem::remove_all(path_); }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

  void write(const std::string& name, const std::string& content) const {
    write_file_atomically(path_ / name, content);
  }
  /// A link to a file that is not there, as in a cache that was pruned.
  void write_broken_link(const std::string& name) const {
    std::filesystem::create_symlink("../blobs/ab12", path_ / name);
  }
  void remove(const std::string& name) const { std::filesystem::remove(path_ / name); }
  const std::filesystem::path& path() const { return path_; }
  Tokenizer load() const { return Tokenizer::from_directory(path_); }
  std::string error() const {
    return error_of([this] { load(); });
  }

 private:
  std::filesystem::path path_;
};

/// a b c and space as bytes, ab, abc.
std::string ranks() {
  std::string out;
  int rank = 0;
  for (const char* token : {"a", "b", "c", " ", "ab", "abc"})
    out += encode_base64(token) + " " + std::to_string(rank++) + "\n";
  return out;
}

TEST(Tiktoken, MergesByRankAndNumbersSpecialTokensOn) {
  const Directory directory("tiktoken");
  directory.write("tokenizer.model", ranks());
  directory.write("tokenizer_config.json",
                  R"({"added_tokens_decoder": {"6": {"content": "<s>"}, "8": {"content": "<e>"}},
                      "bos_token": "<s>", "eos_token": "<e>"})");
  testing::internal::CaptureStderr();
  const Tokenizer tokenizer = directory.load();
  const std::string warning = testing::internal::GetCapturedStderr();
  EXPECT_NE(warning.find("tokenizer.model: this tiktoken vocabulary of 6 tokens is unknown"),
            std::string::npos);
  EXPECT_EQ(tokenizer.encode("abcab <s>c<|reserved_token_7|><e>", true),
            Ids({5, 4, 3, 6, 2, 7, 8}));
  EXPECT_EQ(tokenizer.decode(Ids{5, 6, 4}, true), "abcab");
  EXPECT_EQ(tokenizer.bos_id(), 6);
  EXPECT_EQ(tokenizer.eos_id(), 8);
}

TEST(Tiktoken, RefusesDamagedFiles) {
  const Directory directory("tiktoken_errors");
  directory.write("x.tiktoken", ranks() + "no line\n");
  EXPECT_NE(directory.error().find("x.tiktoken:7"), std::string::npos);
  directory.write("x.tiktoken", ranks() + "ZA== 5\n");
  EXPECT_NE(directory.error().find("two tokens have the rank 5"), std::string::npos);
  directory.write("x.tiktoken", "\n");
  EXPECT_NE(directory.error().find("the tiktoken vocabulary is empty"), std::string::npos);
  directory.write("x.tiktoken", ranks());
  directory.write("tokenizer_config.json",
                  R"({"added_tokens_decoder": {"900000000": {"content": "<s>"}}})");
  EXPECT_NE(directory.error().find("far beyond the vocabulary of 6"), std::string::npos);
}

/// All ways to cut a token in two are looked at; of a long one they are many.
TEST(Tiktoken, ALongTokenTakesNoTime) {
  const Directory directory("tiktoken_long");
  const std::string token(1 << 20, 'a');
  directory.write("tokenizer.model", ranks() + encode_base64(token) + " 6\n");
  EXPECT_EQ(directory.load().encode("ab", true), Ids({4}));
}

/// The trie of one long token is a chain, whose places are all sought from the front.
TEST(Unigram, ALongTokenTakesNoTime) {
  const std::string token(1 << 20, 'a');
  const auto tokenizer = Tokenizer::from_json(
      R"({"model": {"type": "Unigram", "unk_id": 0, "vocab": [["?", 0], ["a", -1], [")" + token +
          R"(", -2]]}})",
      "t.json");
  EXPECT_EQ(tokenizer.encode("aa", true), Ids({1, 1}));
}

TEST(Tekken, PutsSpecialTokensFirst) {
  const Directory directory("tekken");
  const std::string vocab = R"("vocab": [{"token_bytes": "YQ=="}, {"token_bytes": "Yg=="},
                               {"token_bytes": "YWI="}, {"token_bytes": "IA=="}])";
  directory.write("tekken.json", R"({"config": {"pattern": "\\S+|\\s+", "default_vocab_size": 25,
                                    "default_num_special_tokens": 22},)" +
                                     vocab + "}");
  const Tokenizer tokenizer = directory.load();
  EXPECT_EQ(tokenizer.encode("ab[INST]b", true), Ids({3 + 22 - 1, 3, 23}));
  EXPECT_EQ(tokenizer.id_to_token(21), "<SPECIAL_21>");
  EXPECT_EQ(tokenizer.token_to_id("Ġ"), std::nullopt);  // beyond default_vocab_size
  EXPECT_EQ(tokenizer.bos_id(), 1);
  directory.write("tekken.json",
                  R"({"config": {"pattern": "a", "default_num_special_tokens": 3},)" + vocab + "}");
  EXPECT_NE(directory.error().find("invalid number of special tokens 3"), std::string::npos);
  directory.write("tekken.json", "{");
  EXPECT_NE(directory.error().find("not valid JSON"), std::string::npos);
}

TEST(VocabFiles, PythonsNumbersInTheConfigurationAreRead) {
  const Directory directory("vocab_infinity");
  directory.write("vocab.json", R"({"a": 0})");
  directory.write("merges.txt", "");
  directory.write("tokenizer_config.json",
                  R"({"model_max_length": Infinity, "x": [-Infinity, NaN, 1e999]})");
  EXPECT_EQ(directory.load().encode("a", true), Ids({0}));
  std::string wide = "\xFF\xFE";
  for (const char c : std::string("{}")) wide += std::string{c, '\0'};
  directory.write("tokenizer_config.json", wide);
  EXPECT_NE(directory.error().find("the file is UTF-16, not UTF-8"), std::string::npos);
}

TEST(VocabFiles, RefusesDeepNesting) {
  const Directory directory("vocab_deep");
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  directory.write("vocab.json", R"({"a": )" + deep + "}");
  directory.write("merges.txt", "");
  EXPECT_NE(directory.error().find("not a JSON object of tokens and ids"), std::string::npos);
  directory.write("vocab.json", R"({"a": 0})");
  directory.write("tokenizer_config.json", R"({"extra": )" + deep + "}");
  EXPECT_NE(directory.error().find("not valid JSON"), std::string::npos);
}

TEST(VocabFiles, FollowTheTokenizersClass) {
  const Directory directory("vocab");
  directory.write("vocab.json",
                  R"({"a": 0, "b": 1, "ab": 2, "1": 3, "11": 4, "<|endoftext|>": 5})");
  directory.write("merges.txt", "#version: 0.2\na b\n1 1\n");
  EXPECT_EQ(directory.load().encode("ab11<|endoftext|>", true), Ids({2, 4, 5}));
  directory.write("tokenizer_config.json", R"({"tokenizer_class": "Qwen2TokenizerFast"})");
  EXPECT_EQ(directory.load().encode("ab11<|endoftext|>", true), Ids({2, 3, 3, 5}));
  directory.write("tokenizer_config.json", R"({"tokenizer_class": "OddTokenizer"})");
  EXPECT_NE(directory.error().find("`OddTokenizer` needs a tokenizer.json"), std::string::npos);
  directory.write("tokenizer_config.json", "{}");
  directory.write("merges.txt", "a b\na b c\n");
  EXPECT_NE(directory.error().find("merges.txt:2"), std::string::npos);
  directory.write("vocab.json", R"({"a": -1})");
  EXPECT_NE(directory.error().find("invalid id -1"), std::string::npos);
}

TEST(TokenizerJson, OfAnotherClassIsFollowedAndItsTextsAreKnown) {
  const Directory directory("class");
  const auto loaded = [&](const std::string& name, const std::string& model_type,
                          const std::string& pre_tokenizer) {
    directory.write(
        "tokenizer.json",
        R"({"model": {"type": "BPE", "vocab": {"1": 0, "11": 1, "2": 2}, "merges": [["1", "1"]]},
                        "pre_tokenizer": )" +
            pre_tokenizer + "}");
    directory.write("tokenizer_config.json", R"({"tokenizer_class": ")" + name + "\"}");
    directory.write("config.json", R"({"model_type": ")" + model_type + "\"}");
    testing::internal::CaptureStderr();
    Tokenizer tokenizer = directory.load();
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "") << "only texts that differ matter";
    EXPECT_EQ(tokenizer.encode("11", true).size(),
              pre_tokenizer.find("Digits") == std::string::npos ? 1U : 2U);
    return tokenizer;
  };
  const std::string bytes =
      R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false})";
  const std::string digits =
      R"({"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": true}, )" +
      bytes + "]}";
  EXPECT_EQ(loaded("GPT2Tokenizer", "llama", bytes).class_difference(), nullptr);
  EXPECT_EQ(loaded("TokenizersBackend", "llama", digits).class_difference(), nullptr);
  EXPECT_EQ(loaded("GPT2Tokenizer", "granite", digits).class_difference(), nullptr)
      << "taken as it is there";
  const Tokenizer of_class = loaded("GPT2TokenizerFast", "llama", digits);
  ASSERT_NE(of_class.class_difference(), nullptr);
  EXPECT_EQ(of_class.class_difference()->class_name, "GPT2Tokenizer");
  EXPECT_EQ(of_class.class_difference()->parts, "pre_tokenizer");
  EXPECT_NE(of_class.class_difference()->remedy.find("\"TokenizersBackend\""), std::string::npos);
  EXPECT_TRUE(of_class.differs_in_class("2 11"));
  EXPECT_FALSE(of_class.differs_in_class("12")) << "split, but with no merge of the two";
  const Tokenizer of_type = loaded("TokenizersBackend", "qwen2", bytes);
  ASSERT_NE(of_type.class_difference(), nullptr);
  EXPECT_EQ(of_type.class_difference()->parts, "normalizer and the pre_tokenizer");
  EXPECT_NE(of_type.class_difference()->remedy.find("TokenizersBackend.from_pretrained"),
            std::string::npos);
}

// ---- SentencePiece: messages as protobuf writes them

std::string varint(uint64_t value) {
  std::string out;
  for (; value > 127; value >>= 7) out += static_cast<char>((value & 127) | 128);
  return out + static_cast<char>(value);
}
std::string field(uint64_t number, uint64_t value) {
  return varint(number << 3) + varint(value);
}
std::string field(uint64_t number, const std::string& bytes) {
  return varint(number << 3 | 2) + varint(bytes.size()) + bytes;
}
std::string piece(const std::string& text, float score, uint64_t type = 1) {
  std::string bits(4, '\0');
  std::memcpy(bits.data(), &score, 4);
  return field(1, field(1, text) + varint(2 << 3 | 5) + bits + field(3, type));
}

/// <unk> <s> </s> ▁ a b ▁a ab <x>, of which <x> is user-defined.
std::string sentencepiece_model(uint64_t type, bool dummy_prefix = true) {
  std::string out = piece("<unk>", 0, 2) + piece("<s>", 0, 3) + piece("</s>", 0, 3);
  out += piece("\u2581", -3) + piece("a", -4) + piece("b", -5) + piece("\u2581a", -2) +
         piece("ab", -1) + piece("<x>", 0, 4);
  out += field(2, field(3, type));
  return out + field(3, field(3, dummy_prefix ? 1 : 0) + field(4, 0));
}

TEST(SentencePiece, BpeMergesByScore) {
  const Directory directory("bpe");
  directory.write("tokenizer.model", sentencepiece_model(2));
  const Tokenizer tokenizer = directory.load();
  EXPECT_EQ(tokenizer.encode("ab a", true), Ids({3, 7, 6}));  // ab before ▁a
  EXPECT_EQ(tokenizer.encode("b<x>a</s>zb", true), Ids({3, 5, 8, 4, 2, 0, 5}));
  EXPECT_EQ(tokenizer.decode(Ids{3, 7, 6, 2}, true), "ab a");
  EXPECT_EQ(tokenizer.bos_id(), 1);
  EXPECT_EQ(tokenizer.eos_id(), 2);
  directory.write("tokenizer_config.json", R"({"add_bos_token": true, "legacy": true,
      "added_tokens_decoder": {"9": {"content": "<y>", "special": true}}})");
  EXPECT_EQ(directory.load().encode("a<y>a", true), Ids({1, 6, 9, 6}));
}

TEST(SentencePiece, UnigramTakesTheMostProbablePieces) {
  const Directory directory("unigram");
  directory.write("tokenizer.model", sentencepiece_model(1));
  const Tokenizer tokenizer = directory.load();
  EXPECT_EQ(tokenizer.encode("ab", false), Ids({3, 7}));  // -4 beats -7
  EXPECT_EQ(tokenizer.encode("aab", false), Ids({6, 7}));
  EXPECT_EQ(tokenizer.encode("zzb", false), Ids({3, 0, 5}));
  const Encoding encoding = tokenizer.encode_with_spans("ab zz", false);
  EXPECT_EQ(encoding.spans, (std::vector<ByteSpan>{{0, 0}, {0, 2}, {2, 3}, {3, 5}}));
  directory.write("tokenizer.model", sentencepiece_model(1, false));
  EXPECT_EQ(directory.load().encode("ab", false), Ids({7}));
}

TEST(SentencePiece, RefusesDamagedFiles) {
  const auto error = [](const std::string& bytes) {
    return error_of([&] { read_sentencepiece_model(bytes, "m.model"); });
  };
  const std::string model = sentencepiece_model(1);
  EXPECT_NE(error(model.substr(0, model.size() - 3)).find("damaged or has another format"),
            std::string::npos);
  EXPECT_NE(error("").find("it has no pieces"), std::string::npos);
  EXPECT_NE(error(sentencepiece_model(3)).find("of the types word and char"), std::string::npos);
  EXPECT_NE(error(piece("\xFF", 0)).find("not valid UTF-8"), std::string::npos);
  EXPECT_NE(error(piece("a", 0, 9)).find("unknown type 9"), std::string::npos);
  EXPECT_NE(error(piece("a", 0) + field(2, field(40, 7))).find("refers to the id 7"),
            std::string::npos);
  EXPECT_NE(error(field(1, 5)).find("has another"), std::string::npos);
  EXPECT_NE(error(std::string(11, '\xFF')).find("damaged"), std::string::npos);
}

TEST(TokenizerFiles, LooksForThemInOrder) {
  const Directory directory("order");
  EXPECT_NE(directory.error().find("no tokenizer.json"), std::string::npos);
  directory.write("vocab.json", R"({"a": 0})");
  EXPECT_NE(directory.error().find("no tokenizer.json"), std::string::npos);
  directory.write("merges.txt", "");
  EXPECT_EQ(directory.load().vocab_size(), 2);
  directory.write("x.tiktoken", ranks());
  EXPECT_EQ(directory.load().vocab_size(), 6);
  directory.write("tokenizer.model", sentencepiece_model(2));
  EXPECT_EQ(directory.load().vocab_size(), 9);
}

TEST(TokenizerFiles, ABrokenLinkIsNoAbsentFile) {
  const Directory directory("links");
  directory.write("vocab.json", R"({"a": 0})");
  directory.write("merges.txt", "");
  for (const char* name :
       {"tokenizer.json", "tekken.json", "tokenizer.model", "tokenizer_config.json",
        "special_tokens_map.json", "added_tokens.json"}) {
    directory.write_broken_link(name);
    const std::string text = directory.error();
    EXPECT_NE(text.find("a broken symbolic link to ../blobs/ab12"), std::string::npos) << text;
    EXPECT_NE(text.find((directory.path() / name).string()), std::string::npos) << text;
    directory.remove(name);
  }
}

TEST(ChatTemplateIn, ADirectoryWithABrokenLinkIsAnError) {
  const Directory directory("template");
  EXPECT_FALSE(chat_template_in(directory.path()));
  directory.write("tokenizer_config.json", R"({"chat_template": "other"})");
  EXPECT_EQ(chat_template_in(directory.path()), "other");
  directory.write_broken_link("chat_template.jinja");
  test::expect_error([&] { chat_template_in(directory.path()); },
                     {"a broken symbolic link", "chat_template.jinja"});
}

// Processors of transformers wrote it; tokenizers do not read it.
TEST(ChatTemplateIn, TheFileOfAProcessorIsTheLastPlace) {
  const Directory directory("processor");
  directory.write("chat_template.json", R"({"chat_template": "a processor's"})");
  EXPECT_EQ(chat_template_in(directory.path()), "a processor's");
  directory.write("tokenizer_config.json", "{}");
  EXPECT_EQ(chat_template_in(directory.path()), "a processor's");
  directory.write("tokenizer_config.json", R"({"chat_template": "a tokenizer's"})");
  EXPECT_EQ(chat_template_in(directory.path()), "a tokenizer's");
  directory.remove("tokenizer_config.json");
  for (const char* wrong : {"{", "[]", "\xFF"}) {
    directory.write("chat_template.json", wrong);
    test::expect_error([&] { chat_template_in(directory.path()); }, {"chat_template.json"});
  }
  directory.remove("chat_template.json");
  directory.write_broken_link("chat_template.json");
  test::expect_error([&] { chat_template_in(directory.path()); },
                     {"a broken symbolic link", "chat_template.json"});
}

TEST(Base64, IsStrict) {
  for (const std::string& text :
       std::vector<std::string>{"", "a", "ab", "abc", "abcd", std::string("\0\xFF\x80", 3)})
    EXPECT_EQ(decode_base64(encode_base64(text)), text);
  EXPECT_EQ(decode_base64("YQ=="), "a");
  for (const char* wrong : {"YQ", "YQ=", "Y===", "YR==", "Y Q=", "YQ==YQ=="})
    EXPECT_EQ(decode_base64(wrong), std::nullopt) << wrong;
}

}  // namespace
}  // namespace sftrun::tokenizer
