#include "sftrun/data/label_weights.h"

#include <algorithm>

namespace sftrun::data {
namespace {

bool overlaps(const tokenizer::ByteSpan& token, const tokenizer::ByteSpan& span) {
  // A token without bytes, such as a space that the tokenizer adds, belongs to what begins there.
  const uint32_t end = std::max(token.end, token.begin + 1);
  return span.begin < end && token.begin < span.end;
}

/// Of the last of the spans that the token has a byte of; 1: there is none.
float last_weight(const std::vector<WeightedSpan>& spans, const tokenizer::ByteSpan& token) {
  const auto found = std::find_if(spans.rbegin(), spans.rend(), [&](const WeightedSpan& one) {
    return overlaps(token, one.span);
  });
  return found == spans.rend() ? 1 : found->weight;
}

/// The answers are in order: of the first that the token has a byte of.
float answer_weight(const std::vector<WeightedSpan>& answers, const tokenizer::ByteSpan& token) {
  const auto found = std::find_if(answers.begin(), answers.end(), [&](const WeightedSpan& one) {
    return overlaps(token, one.span);
  });
  return found == answers.end() ? 1 : found->weight;
}

}  // namespace

LabelWeights::LabelWeights(const nlohmann::ordered_json& configured) {
  for (const auto& [pattern, weight] : configured.items())
    rules_.push_back({PythonRegex(pattern, PythonRegex::Matches::kAll, "data.label_weights"),
                      weight.get<float>()});
}

void LabelWeights::add_matches(std::string_view text, tokenizer::ByteSpan answer,
                               std::vector<WeightedSpan>& matches) const {
  const std::string_view of_answer = text.substr(answer.begin, answer.end - answer.begin);
  for (const Rule& rule : rules_)
    for (const auto& [begin, end] : rule.pattern.all_in(of_answer))
      matches.push_back(
          {{answer.begin + static_cast<uint32_t>(begin), answer.begin + static_cast<uint32_t>(end)},
           rule.weight});
}

std::vector<float> weigh_labels(std::span<const tokenizer::ByteSpan> spans,
                                const std::vector<WeightedSpan>& answers,
                                const std::vector<WeightedSpan>& matches,
                                std::vector<uint8_t>& mask) {
  const auto is_one = [](const WeightedSpan& one) { return one.weight == 1; };
  if (matches.empty() && std::all_of(answers.begin(), answers.end(), is_one)) return {};
  std::vector<float> weights(mask.size(), 1);
  for (size_t i = 0; i < mask.size(); ++i) {
    if (mask[i] == 0) continue;
    weights[i] = answer_weight(answers, spans[i]) * last_weight(matches, spans[i]);
    if (weights[i] == 0) mask[i] = 0;
  }
  return weights;
}

}  // namespace sftrun::data
