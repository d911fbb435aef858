#include "endings.h"

#include <algorithm>
#include <vector>

#include "sftrun/core/strings.h"

namespace sftrun::data {
namespace {

/// The tokens of the last run of labels.
std::vector<text::TokenId> last_run(const Example& example) {
  const auto carries = [](int32_t label) { return label != kIgnoreIndex; };
  const auto last = std::find_if(example.labels.rbegin(), example.labels.rend(), carries);
  const auto before = std::find_if_not(last, example.labels.rend(), carries);
  return {before.base(), last.base()};
}

}  // namespace

Ending ending_of(const Example& example, const TextModel& model) {
  bool ends_in_special = false;
  for (size_t i = 0; i < example.labels.size(); ++i) {
    const int32_t label = example.labels[i];
    if (label == kIgnoreIndex) continue;
    if (std::find(model.stop_ids.begin(), model.stop_ids.end(), label) != model.stop_ids.end())
      return Ending::kStop;
    // White space may follow the token inside a run ({% generation %} marks often include it).
    const bool is_near_end = i + 2 >= example.labels.size() ||
                             example.labels[i + 1] == kIgnoreIndex ||
                             example.labels[i + 2] == kIgnoreIndex;
    ends_in_special = ends_in_special || (is_near_end && model.tokenizer->is_special(label));
  }
  return ends_in_special ? Ending::kSpecial : Ending::kNone;
}

std::string last_answer(const Example& example, const text::Tokenizer& tokenizer) {
  return tokenizer.decode(last_run(example), /*skip_special_tokens=*/false);
}

std::string last_token(const Example& example, const text::Tokenizer& tokenizer) {
  const std::vector<text::TokenId> run = last_run(example);
  return run.empty() ? "" : tokenizer.id_to_token(run.back());
}

std::string stop_tokens_of(const TextModel& model) {
  std::vector<std::string> names;
  for (const text::TokenId id : model.stop_ids)
    names.push_back("`" + model.tokenizer->id_to_token(id) + "`");
  return names.empty() ? "none" : join(names, ", ");
}

}  // namespace sftrun::data
