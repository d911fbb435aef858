#include "tokenizer_impl.h"

namespace sftrun::tokenizer {
namespace {

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

}  // namespace

std::string write_tokenizer_json(const Tokenizer::Impl& impl) {
  std::string out = "{\n" + json_field("version", "\"1.0\"");
  out += json_field("truncation", impl.truncation_section.dump(2));
  out += json_field("padding", impl.padding_section.dump(2));
  out += json_field("added_tokens", added_tokens_json(impl.added));
  out += json_field("normalizer", impl.normalizer_section.dump(2));
  out += json_field("pre_tokenizer", impl.pre_tokenizer_section.dump(2));
  out += json_field("post_processor", impl.post_processor_section.dump(2));
  out += json_field("decoder", impl.decoder_section.dump(2));
  out += "\"model\": {\n";
  impl.model->write_json(out);
  return out + "\n}\n}\n";
}

}  // namespace sftrun::tokenizer
