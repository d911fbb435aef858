#include "label_runs.h"

#include <fmt/format.h>

#include <algorithm>

#include "sftrun/core/error.h"

namespace sftrun::templates {
namespace {

using Run = LabelledConversation::Run;

/// Runs of {% generation %} marks. A mark belongs to the message whose text it contains, else to
/// the message before.
std::vector<Run> marked_runs(const Rendered& full, const Json& messages) {
  std::vector<Run> runs;
  for (const OriginSpan& span : full.origins) {
    if (!span.origin.in_generation) continue;
    const int32_t message = span.origin.kind == Origin::Kind::kMessage ? span.origin.message : -1;
    if (!runs.empty() && runs.back().span.end == span.begin &&
        (message < 0 || runs.back().message < 0 || runs.back().message == message)) {
      runs.back().span.end = span.end;
      if (runs.back().message < 0) runs.back().message = message;
    } else {
      runs.push_back({{span.begin, span.end}, message});
    }
  }
  int32_t last = -1;
  for (Run& run : runs) {
    if (run.message < 0) {
      run.message = last;
      for (size_t i = static_cast<size_t>(last + 1); i < messages.size() && run.message < 0; ++i) {
        if (is_assistant(messages[i])) run.message = static_cast<int32_t>(i);
      }
    }
    last = run.message;
  }
  return runs;
}

void remove_excluded(std::vector<Run>& runs, const Json& messages) {
  std::erase_if(runs, [&messages](const Run& run) {
    return run.message >= 0 && is_excluded(messages[static_cast<size_t>(run.message)]);
  });
}

float weight_of(const Json& message) {
  const auto weight = message.find("weight");
  return weight != message.end() && weight->is_number() ? weight->get<float>() : 1;
}

void set_weights(std::vector<Run>& runs, const Json& messages) {
  for (Run& run : runs)
    if (run.message >= 0) run.weight = weight_of(messages[static_cast<size_t>(run.message)]);
}

/// Removes the runs of the turns that are not trained on.
std::vector<Run> everything_but(const std::vector<Run>& turns, const Json& messages, size_t size) {
  std::vector<Run> runs;
  uint32_t begin = 0;
  const auto add_until = [&](uint32_t end) {
    if (end > begin) runs.push_back({{begin, end}, -1});
  };
  for (const Run& turn : turns) {
    if (turn.message < 0) continue;
    const bool excluded = is_excluded(messages[static_cast<size_t>(turn.message)]);
    if (!excluded && turn.weight == 1) continue;
    add_until(turn.span.begin);
    if (!excluded) runs.push_back(turn);
    begin = turn.span.end;
  }
  add_until(static_cast<uint32_t>(size));
  return runs;
}

/// The message without the keys that only the trainer uses.
Json without_label_keys(const Json& messages) {
  Json copy = messages;
  for (Json& message : copy) {
    if (!message.is_object()) continue;
    message.erase("train");
    message.erase("weight");
  }
  return copy;
}

}  // namespace

bool is_assistant(const Json& message) {
  const auto role = message.find("role");
  if (role == message.end() || !role->is_string()) return false;
  return *role == "assistant" || *role == "model" || *role == "chatbot";
}

bool is_excluded(const Json& message) {
  const auto train = message.find("train"), weight = message.find("weight");
  return (train != message.end() && train->is_boolean() && !train->get<bool>()) ||
         (weight != message.end() && weight->is_number() && weight->get<double>() == 0.0);
}

std::vector<Run> find_label_runs(const ChatTemplate& chat_template, const Json& messages,
                                 const Json& labelled, const RenderOptions& options,
                                 const Rendered& full, const FindSpecials& find_specials) {
  if (chat_template.has_generation_marks()) return marked_runs(full, messages);
  std::vector<Run> runs;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (!is_assistant(messages[i])) continue;
    const std::vector<Run> turn =
        find_turn(chat_template, messages, options, full, find_specials, static_cast<int32_t>(i));
    if (turn.empty() && is_excluded(labelled[i])) continue;
    if (turn.empty()) {
      throw DataError(
          fmt::format(
              "the chat template omits messages[{}] (assistant), so it cannot be trained on", i),
          {}, "remove the message, or set \"train\": false");
    }
    runs.insert(runs.end(), turn.begin(), turn.end());
  }
  std::stable_sort(runs.begin(), runs.end(),
                   [](const Run& a, const Run& b) { return a.span.begin < b.span.begin; });
  for (size_t i = 1; i < runs.size(); ++i) {  // a turn ends before the next one
    runs[i - 1].span.end =
        std::min(runs[i - 1].span.end, std::max(runs[i].span.begin, runs[i - 1].span.begin));
  }
  return runs;
}

LabelledConversation label_with_specials(const ChatTemplate& chat_template, const Json& messages,
                                         const RenderOptions& options, LossOn loss_on,
                                         const FindSpecials& find_specials) {
  const Json shown = without_label_keys(messages);
  LabelledConversation result;
  result.rendered = chat_template.render(shown, options);
  const bool is_even = std::none_of(messages.begin(), messages.end(), [](const Json& message) {
    return is_excluded(message) || weight_of(message) != 1;
  });
  if (loss_on == LossOn::kAll && is_even) {
    result.runs = everything_but({}, messages, result.rendered.text.size());
    return result;
  }
  result.runs =
      find_label_runs(chat_template, shown, messages, options, result.rendered, find_specials);
  set_weights(result.runs, messages);
  if (loss_on == LossOn::kAll) {
    result.runs = everything_but(result.runs, messages, result.rendered.text.size());
    return result;
  }
  if (loss_on == LossOn::kLastAssistant && !result.runs.empty()) {
    const int32_t last = result.runs.back().message;
    std::erase_if(result.runs, [last](const Run& run) { return run.message != last; });
  }
  remove_excluded(result.runs, messages);
  return result;
}

}  // namespace sftrun::templates
