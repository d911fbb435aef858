#include "text_generator.h"

#include <utility>

#include "session.h"

namespace sftrun::engine {

TextGenerator::TextGenerator(const data::TextModel& text, model::SamplingOptions options,
                             const std::vector<std::string>& stops)
    : text_(text), options_(std::move(options)) {
  tokenizer::Stops divided = tokenizer::divide_stops(*text.tokenizer, stops);
  stop_texts_ = std::move(divided.texts);
  options_.stop_tokens.assign(text.stop_ids.begin(), text.stop_ids.end());
  options_.stop_tokens.insert(options_.stop_tokens.end(), divided.tokens.begin(),
                              divided.tokens.end());
}

Answer TextGenerator::answer_of(model::Generation&& generation,
                                const tokenizer::GeneratedText* text) const {
  Answer answer{.text = text != nullptr ? text->text()
                                        : text_.tokenizer->decode(generation.tokens,
                                                                  /*skip_special_tokens=*/true),
                .num_tokens = generation.tokens.size(),
                .stopped = generation.stopped};
  if (!options_.keeps_logprobs) return answer;
  answer.token_ids = std::move(generation.tokens);
  if (generation.stop_token) answer.token_ids.push_back(*generation.stop_token);
  answer.logprobs = std::move(generation.logprobs);
  return answer;
}

void TextGenerator::run(model::Decoder& decoder, size_t batch_size, const AnswerHooks& hooks,
                        layers::CopyRanks* ranks) const {
  std::map<size_t, tokenizer::GeneratedText> texts;  // of unfinished answers, by prompt
  const auto read = [&](size_t index, int32_t token) {
    tokenizer::GeneratedText& text =
        texts.try_emplace(index, *text_.tokenizer, stop_texts_).first->second;
    const bool goes_on = text.add(token);
    if (hooks.on_text) hooks.on_text(text.settled());
    return goes_on;
  };
  const bool reads = hooks.on_text || !stop_texts_.empty();
  model::generate(decoder, options_, batch_size,
                  {.next_prompt = hooks.next_prompt,
                   .on_finished =
                       [&](size_t index, model::Generation&& generation) {
                         const auto text = texts.find(index);
                         const bool has_text = text != texts.end();
                         Answer answer =
                             answer_of(std::move(generation), has_text ? &text->second : nullptr);
                         if (has_text) texts.erase(text);
                         hooks.on_answer(index, std::move(answer));
                       },
                   .on_token = reads ? model::OnToken(read) : model::OnToken(),
                   .before_step = hooks.before_step},
                  ranks);
}

model::SamplingOptions sampling_options(const app::SamplingRequest& request) {
  model::SamplingOptions options;
  options.max_new_tokens = request.max_new_tokens;
  options.temperature = request.temperature;
  options.top_p = request.top_p.value_or(1.0);
  options.top_k = request.top_k;
  options.min_p = request.min_p.value_or(0.0);
  options.repetition_penalty = request.repetition_penalty.value_or(1.0);
  options.seed = static_cast<uint64_t>(request.seed.value_or(0));
  return options;
}

}  // namespace sftrun::engine
