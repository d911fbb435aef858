#include "tokenizer_impl.h"

namespace sftrun::text {
namespace {

std::string json_string(std::string_view text) {
  return Json(text).dump();
}

std::string added_tokens_json(const AddedTokens& tokens) {
  Json out = Json::array();
  for (const AddedToken& token : tokens.all()) {
    out.push_back({{"id", token.id},
                   {"content", token.content},
                   {"single_word", token.single_word},
                   {"lstrip", token.lstrip},
                   {"rstrip", token.rstrip},
                   {"normalized", token.normalized},
                   {"special", token.special}});
  }
  return out.dump(2);
}

std::string vocab_json(const StringTable& vocab) {
  std::string out;
  for (size_t i = 0; i < vocab.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    if (!vocab.has(id)) continue;
    out += (out.empty() ? "\n" : ",\n") + json_string(vocab.at(id)) + ": " + std::to_string(id);
  }
  return out;
}

std::string merges_json(const Bpe& bpe) {
  std::string out;
  for (const auto& [left, right] : bpe.merges().in_order()) {
    out += (out.empty() ? "\n[" : ",\n[") + json_string(bpe.vocab().at(left)) + ", " +
           json_string(bpe.vocab().at(right)) + "]";
  }
  return out;
}

}  // namespace

std::string write_tokenizer_json(const Tokenizer::Impl& impl) {
  const BpeOptions& options = impl.bpe.options();
  const auto field = [](const char* key, const std::string& value) {
    return json_string(key) + ": " + value + ",\n";
  };
  const auto flag = [](bool value) { return std::string(value ? "true" : "false"); };
  std::string out = "{\n";
  out += field("version", "\"1.0\"") + field("truncation", "null") + field("padding", "null");
  out += field("added_tokens", added_tokens_json(impl.added));
  out += field("normalizer", impl.normalizer_section.dump(2));
  out += field("pre_tokenizer", impl.pre_tokenizer_section.dump(2));
  out += field("post_processor", impl.post_processor_section.dump(2));
  out += field("decoder", impl.decoder_section.dump(2));
  out += "\"model\": {\n";
  out += field("type", "\"BPE\"") + field("dropout", "null");
  out += field("unk_token", options.unk_token.empty() ? "null" : json_string(options.unk_token));
  out += field("continuing_subword_prefix", "null") + field("end_of_word_suffix", "null");
  out += field("fuse_unk", flag(options.fuse_unk)) +
         field("byte_fallback", flag(options.byte_fallback));
  out += field("ignore_merges", flag(options.ignore_merges));
  out += "\"vocab\": {" + vocab_json(impl.bpe.vocab()) + "\n},\n";
  out += "\"merges\": [" + merges_json(impl.bpe) + "\n]\n}\n}\n";
  return out;
}

}  // namespace sftrun::text
