#include "dataset_checks.h"

#include "roles.h"
#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"
#include "sftrun/data/image_input.h"

namespace sftrun::data {
namespace {

/// A model that is not trained on its end-of-turn token does not stop.
void require_trained_ends(const DatasetTallies& tallies, const CheckContext& context) {
  if (context.model_writes_answers()) return;
  if (tallies.without_end.count() != tallies.stats.num_examples || !context.trains_ends()) return;
  throw DataError(
      fmt::format("no example trains on an end-of-turn token, so the trained model would not "
                  "stop; the last answer of this one, as it would be trained on, is\n{}",
                  excerpt(last_answer(*tallies.first_kept, *context.model.tokenizer))),
      tallies.first_kept_place,
      fmt::format(
          "use a chat template that writes a stop token of the model ({}) after each answer, "
          "inside its generation marks if it has any: remove model.chat_template if the model "
          "has its own, or change it (sftrun preview shows the labels); if examples are "
          "truncated, raise model.max_seq_len",
          stop_tokens_of(context.model)));
}

/// If no example is left, the warnings are not printed.
std::string unknown_roles_fix(const DatasetTallies& tallies) {
  return tallies.unknown_roles.empty()
             ? ""
             : advice_on_role(tallies.unknown_roles.begin()->first) + "; ";
}

[[noreturn]] void refuse_empty(const DatasetTallies& tallies, const CheckContext& context) {
  if (tallies.first_without_labels) {
    throw DataError(fmt::format("no token of any record has a label, so there is nothing to "
                                "train on; one record is\n{}",
                                tallies.first_without_labels->first),
                    tallies.first_without_labels->second,
                    unknown_roles_fix(tallies) +
                        "see sftrun preview; check that conversations have assistant turns "
                        "(not all \"train\": "
                        "false), data.loss_on and model.max_seq_len");
  }
  SFTRUN_CHECK(tallies.shortest_too_long.has_value());
  std::string fix = "raise model.max_seq_len";
  if (!context.trains_ends()) fix += ", or set data.too_long: truncate";
  if (tallies.long_media.are_images) fix += way_to_smaller_images(context.model);
  throw DataError(
      context.rule.answer_tokens > 0
          ? fmt::format("every prompt is too long: {}; the shortest has {} tokens",
                        context.rule.words(), tallies.shortest_too_long->first)
          : fmt::format(
                "every record is longer than model.max_seq_len = {}; the shortest has {} tokens",
                context.rule.max_seq_len, tallies.shortest_too_long->first),
      tallies.shortest_too_long->second, fix);
}

}  // namespace

void DatasetChecks::add(const TokenizedSource::Block& block, bool gives_up) {
  for (size_t i = 0; i < block.records.size(); ++i) {
    if (const auto& bad = block.bad[i]) tallies_.bad.add(*bad, tallies_.stats.num_records);
    add(block.records[i], block.places[i]);
  }
  tallies_.stats.num_bad = tallies_.bad.count();
  if (gives_up && tallies_.bad.is_hopeless(tallies_.stats.num_records))
    tallies_.bad.refuse(tallies_.stats.num_records);
}

void DatasetChecks::require_usable_records(const std::string& scope) const {
  tallies_.bad.require_usable(context_.data.bad_records, tallies_.stats.num_records, scope);
}

std::vector<Remark> DatasetChecks::conclude() const {
  if (!tallies_.first_kept) refuse_empty(tallies_, context_);
  require_trained_ends(tallies_, context_);
  return remarks_on(tallies_, context_);
}

}  // namespace sftrun::data
