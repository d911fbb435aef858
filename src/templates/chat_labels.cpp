#include "sftrun/templates/chat_labels.h"

#include "label_runs.h"

namespace sftrun::templates {

LabelledConversation label_conversation(const ChatTemplate& chat_template,
                                        const tokenizer::Tokenizer& tokenizer, const Json& messages,
                                        const RenderOptions& options, LossOn loss_on) {
  const auto find_specials = [&tokenizer](std::string_view text) {
    const tokenizer::Encoding encoding = tokenizer.encode_with_spans(text, false);
    std::vector<tokenizer::ByteSpan> specials;
    for (size_t i = 0; i < encoding.ids.size(); ++i) {
      if (tokenizer.is_special(encoding.ids[i])) specials.push_back(encoding.spans[i]);
    }
    return specials;
  };
  return label_with_specials(chat_template, messages, options, loss_on, find_specials);
}

namespace {

bool is_trained_on(const tokenizer::Tokenizer& tokenizer, tokenizer::TokenId id,
                   const tokenizer::ByteSpan& span, const tokenizer::ByteSpan& run) {
  const bool begins_in_run = run.begin <= span.begin;
  if (span.begin == span.end) return begins_in_run && !tokenizer.is_special(id);
  return tokenizer.is_added(id) ? begins_in_run : run.begin < span.end;
}

}  // namespace

LabelledTokens tokenize_labelled(const tokenizer::Tokenizer& tokenizer,
                                 const LabelledConversation& conversation) {
  tokenizer::Encoding encoding = tokenizer.encode_with_spans(conversation.rendered.text, false);
  LabelledTokens tokens;
  tokens.mask.resize(encoding.ids.size(), 0);
  size_t run = 0;
  for (size_t i = 0; i < encoding.ids.size(); ++i) {
    const tokenizer::ByteSpan& span = encoding.spans[i];
    while (run < conversation.runs.size() && conversation.runs[run].span.end <= span.begin) ++run;
    const bool trained =
        run < conversation.runs.size() &&
        is_trained_on(tokenizer, encoding.ids[i], span, conversation.runs[run].span);
    tokens.mask[i] = trained ? 1 : 0;
  }
  tokens.ids = std::move(encoding.ids);
  tokens.spans = std::move(encoding.spans);
  return tokens;
}

}  // namespace sftrun::templates
