#include "endings.h"

#include <algorithm>
#include <vector>

#include "sftrun/core/strings.h"

namespace sftrun::data {
namespace {

/// Whether the token ends a run of labels. White space may follow it inside the run
/// ({% generation %} marks often include it).
bool is_near_end_of_run(const Example& example, size_t i) {
  return i + 2 >= example.labels.size() || example.labels[i + 1] == kIgnoreIndex ||
         example.labels[i + 2] == kIgnoreIndex;
}

/// The tokens of the last run of labels.
std::vector<tokenizer::TokenId> last_run(const Example& example) {
  const auto carries = [](int32_t label) { return label != kIgnoreIndex; };
  const auto last = std::find_if(example.labels.rbegin(), example.labels.rend(), carries);
  const auto before = std::find_if_not(last, example.labels.rend(), carries);
  return {before.base(), last.base()};
}

}  // namespace

Ending ending_of(const Example& example, const TextModel& model) {
  for (const int32_t label : example.labels) {
    if (label == kIgnoreIndex) continue;
    if (std::find(model.stop_ids.begin(), model.stop_ids.end(), label) != model.stop_ids.end())
      return Ending::kStop;
  }
  return end_token_of(example, *model.tokenizer) ? Ending::kSpecial : Ending::kNone;
}

std::optional<EndToken> end_token_of(const Example& example,
                                     const tokenizer::Tokenizer& tokenizer) {
  bool is_last_run = true;
  for (size_t i = example.labels.size(); i-- > 0;) {
    const int32_t label = example.labels[i];
    if (label == kIgnoreIndex) {
      const bool begins_run =
          i + 1 < example.labels.size() && example.labels[i + 1] != kIgnoreIndex;
      if (begins_run) is_last_run = false;
    } else if (is_near_end_of_run(example, i) && tokenizer.is_special(label)) {
      return EndToken{.id = label, .ends_last_answer = is_last_run};
    }
  }
  return std::nullopt;
}

std::string last_answer(const Example& example, const tokenizer::Tokenizer& tokenizer) {
  return tokenizer.decode(last_run(example), /*skip_special_tokens=*/false);
}

std::string stop_tokens_of(const TextModel& model) {
  std::vector<std::string> names;
  for (const tokenizer::TokenId id : model.stop_ids)
    names.push_back("`" + model.tokenizer->id_to_token(id) + "`");
  return names.empty() ? "none" : join(names, ", ");
}

}  // namespace sftrun::data
