#include "dataset_remarks.h"

#include <string_view>
#include <utility>

#include "judgement_balance.h"
#include "roles.h"
#include "sftrun/config/trained_rows.h"
#include "sftrun/core/log.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/units.h"
#include "sftrun/data/image_input.h"
#include "unread_columns.h"

namespace sftrun::data {
namespace {

/// Collects the remarks, by a function for each subject.
class DatasetRemarks {
 public:
  DatasetRemarks(const DatasetTallies& tallies, const CheckContext& context)
      : tallies_(tallies), context_(context) {}

  std::vector<Remark> all();

 private:
  void warn(const Tally& tally, const std::string& what, const std::string& advice);
  void remark_on_records();
  void remark_on_turn_keys();
  void remark_on_roles();
  void remark_on_ends();
  std::string remark_on_end_token(const EndToken& end) const;
  void remark_on_thinking();
  void remark_on_templates();
  std::string advice_on_earlier_reasoning() const;
  std::string advice_on_empty_answers() const;
  bool takes_whole_answers() const { return context_.form != config::ExampleForm::kAnswer; }
  void remark_on_class();
  void remark_on_lengths();
  void remark_on_long_media();

  const DatasetTallies& tallies_;
  const CheckContext& context_;
  std::vector<Remark> remarks_;
};

std::vector<Remark> DatasetRemarks::all() {
  remark_on_records();
  remark_on_roles();
  remark_on_ends();
  remark_on_thinking();
  remark_on_templates();
  remark_on_class();
  remark_on_lengths();
  return std::move(remarks_);
}

void DatasetRemarks::warn(const Tally& tally, const std::string& what, const std::string& advice) {
  if (tally.count() == 0) return;
  remarks_.push_back(
      {true, fmt::format("data: {} ({}): {}; {}", what, tally.count(), tally.places(), advice)});
}

/// Answers end in a special token at which generation does not stop.
std::string DatasetRemarks::remark_on_end_token(const EndToken& end) const {
  const std::string token = context_.model.tokenizer->id_to_token(end.id);
  const std::string stops = stop_tokens_of(context_.model);
  if (end.ends_last_answer) {
    return fmt::format(
        "data: answers end in `{}`, but generation with this model stops only at {}: add the "
        "token's id to eos_token_id in the model's generation_config.json",
        token, stops);
  }
  return fmt::format(
      "data: the last answer of a conversation has no end token, the answers before it end in "
      "`{0}`, and generation with this model stops only at {1}: add the id of `{0}` to "
      "eos_token_id in the model's generation_config.json, and set model.chat_template to a "
      "template that writes `{0}` after the last answer, too",
      token, stops);
}

void DatasetRemarks::remark_on_ends() {
  if (context_.model_writes_answers()) return;
  if (context_.head != config::HeadKind::kLanguage) return;  // the model is not to stop
  if (tallies_.without_end.count() > 0) {
    remarks_.push_back(
        {true,
         fmt::format("data: no end-of-turn token is trained on in {} of {}: {}",
                     tallies_.without_end.count(), counted(tallies_.stats.num_examples, "example"),
                     tallies_.without_end.places())});
  }
  if (tallies_.num_stop == 0 && tallies_.end_token)
    remarks_.push_back({true, remark_on_end_token(*tallies_.end_token)});
}

void DatasetRemarks::remark_on_thinking() {
  if (context_.data.empty_thinking == config::EmptyThinking::kWarn) {
    warn(tallies_.empty_thinking,
         "answers begin with empty reasoning, which trains the model not to reason",
         "data.empty_thinking: drop does not train on it; keep trains on it without this warning");
  } else if (context_.data.empty_thinking == config::EmptyThinking::kDrop &&
             tallies_.empty_thinking.count() > 0) {
    remarks_.push_back({false, fmt::format("data: the empty reasoning of {} is not trained on",
                                           counted(tallies_.empty_thinking.count(), "answer"))});
  }
}

void DatasetRemarks::remark_on_roles() {
  for (const auto& [role, records] : tallies_.unknown_roles) {
    warn(
        records,
        fmt::format("records have the role `{}`, which is not in the chat template", excerpt(role)),
        advice_on_role(role));
  }
}

void DatasetRemarks::remark_on_records() {
  if (tallies_.bad.count() > 0)
    remarks_.push_back({true, "data: " + tallies_.bad.left_out(tallies_.stats.num_records)});
  for (const auto& [field, records] : tallies_.absent_fields) {
    if (records.count() == tallies_.stats.num_records - tallies_.stats.num_bad)
      remarks_.push_back({true, "data: " + absent_field_warning(field)});
  }
  for (const auto& [column, records] : tallies_.unread_columns) {
    warn(records, fmt::format("records have \"{}\", which is not read", column),
         advice_on_column(column));
  }
  for (const auto& [field, records] : tallies_.unread_media)
    warn(records, remark_on_media(field), advice_on_media(field));
  remark_on_turn_keys();
  warn(tallies_.two_systems, "records have a \"system\" and a turn of that role",
       kTwoSystemsAdvice);
  warn(
      tallies_.idle_markers, "records have <image> in their texts, and no images",
      "it is trained on as text; write the images' files into a column \"images\", or name theirs: "
      "data.fields: {images: COLUMN}");
  warn(tallies_.messages_as_text, "texts begin like lists of messages, and are trained on as texts",
       "write lists of messages, not what json.dumps or Python's str makes of them; in a CSV file "
       "each of the record's columns as JSON");
  warn(tallies_.outside_template,
       "records of strings are trained on without the model's chat template",
       fmt::format("write lists of messages, or name the columns: data.fields: {} puts them into "
                   "the template",
                   context_.is_preference ? "{instruction: COLUMN}"
                                          : "{instruction: COLUMN, output: COLUMN}"));
  if (tallies_.null_arguments.count() > 0) {
    remarks_.push_back({false, fmt::format("data: in {}, nulls inside of arguments or tools "
                                           "are left out, as missing values: {}",
                                           counted(tallies_.null_arguments.count(), "record"),
                                           tallies_.null_arguments.places())});
  }
  warn(tallies_.begins_with_answer, "conversations begin with an assistant turn",
       "the model is trained to speak first; if that is not intended, add a user turn before it");
  if (!context_.answers_all)
    warn(tallies_.empty_answers, "answers are empty", advice_on_empty_answers());
  warn(tallies_.equal_pairs, "pairs have the same chosen and rejected answer",
       context_.form == config::ExampleForm::kJudged
           ? "the answer is judged both ways; leave them out"
           : "they do not say which answer is better; a cross-entropy in the loss (orpo, cpo, "
             "train.cpo_alpha, `sft` in train.loss_type) trains on them all the same; leave them "
             "out");
}

std::string DatasetRemarks::advice_on_empty_answers() const {
  const std::string what = "this trains the model to give empty answers; remove such ";
  if (context_.is_preference) return what + "pairs";
  if (context_.answers_some)
    return "those that the student does not answer itself train it to give empty answers, and "
           "teach "
           "nothing else: set train.rollouts.share to 1, or remove such records";
  return what + (takes_whole_answers()
                     ? "records"
                     : "records, or give the messages of such turns \"train\": false");
}

/// A warning for each flag, and one for all other keys.
void DatasetRemarks::remark_on_turn_keys() {
  std::vector<std::string> others;
  const Tally* most = nullptr;
  for (const auto& [key, records] : tallies_.unread_turn_keys) {
    const std::string shown = '"' + excerpt(key) + '"';
    if (is_loss_flag(key)) {
      warn(records, fmt::format("records have turns with {}, which is not read", shown),
           advice_on_loss_flag(context_.form));
      continue;
    }
    others.push_back(shown);
    if (most == nullptr || records.count() > most->count()) most = &records;
  }
  if (most == nullptr) return;
  constexpr size_t kMaxNamed = 8;
  const bool is_one = others.size() == 1;
  if (others.size() > kMaxNamed) {
    others.resize(kMaxNamed);
    others.emplace_back("…");
  }
  warn(*most,
       fmt::format("records have turns with {}, which {} not read", join(others, ", "),
                   is_one ? "is" : "are"),
       "they are not in the rendered conversation; write text to train on into the content");
}

void DatasetRemarks::remark_on_templates() {
  // No built-in template writes calls, reasoning and tools.
  const std::string other_template =
      "set model.chat_template to the Jinja file of a model whose template writes them (its "
      "chat_template.jinja; the built-in templates do not)";
  warn(tallies_.tool_calls, "answers call tools, but the chat template omits the calls",
       "they are not trained on; " + other_template);
  warn(tallies_.reasoning, "answers have reasoning, but the chat template omits it",
       "it is not trained on; " + other_template +
           ", or write the reasoning into the content, between the marks that the model knows");
  warn(tallies_.answer_texts,
       "answers have text outside their reasoning that the chat template omits",
       "it is not trained on; templates keep what is between the first <think> and </think> and "
       "what follows the last </think>: leave one pair in each answer");
  warn(tallies_.messages, "messages have text that the chat template omits",
       "the model does not see it; give them a role that the template writes, for example by "
       "data.fields: {roles: {developer: system}}, or another template");
  warn(tallies_.earlier_reasoning,
       "answers before the last one of a conversation have reasoning, but the chat template omits "
       "it",
       advice_on_earlier_reasoning());
  warn(tallies_.tools, "conversations have tools, but the chat template omits them",
       "the model does not see them; " + other_template);
  warn(tallies_.control_tokens, "messages have control tokens of the model in their text",
       "they are read as if the chat template had written them; take them out where that is not "
       "meant");
  if (!context_.expects_bos) return;
  warn(tallies_.missing_bos,
       fmt::format("conversations begin without {}, which the tokenizer puts before texts",
                   context_.model.tokenizer->id_to_token(*context_.model.tokenizer->bos_id())),
       "change the chat template to begin with {{ bos_token }}");
}

void DatasetRemarks::remark_on_class() {
  const tokenizer::ClassDifference* difference = context_.model.tokenizer->class_difference();
  if (difference == nullptr) return;
  warn(tallies_.differs_in_class,
       fmt::format("examples have other tokens in transformers 5, which uses the class {} instead "
                   "of the {} of tokenizer.json",
                   difference->class_name, difference->parts),
       "sftrun uses the file, as transformers 4 does; to make transformers 5 use it, " +
           difference->remedy);
}

void DatasetRemarks::remark_on_lengths() {
  const std::string judgements = judgement_counts(tallies_.stats);
  const bool are_prompts = context_.form == config::ExampleForm::kPrompt;
  const std::string_view of_texts = config::trained_of_texts(context_.head);
  if (!of_texts.empty())
    remarks_.push_back(
        {false, fmt::format("data: {}, {}{}, {} tokens, longest {}; trained on: {}",
                            counted(tallies_.stats.num_records, "record"),
                            counted(tallies_.stats.num_examples, "example"),
                            judgements.empty() ? "" : fmt::format(" ({})", judgements),
                            format_count(static_cast<uint64_t>(tallies_.stats.num_tokens)),
                            tallies_.stats.longest, of_texts)});
  else if (are_prompts)
    remarks_.push_back(
        {false, fmt::format("data: {}, {}, {} tokens, longest {}",
                            counted(tallies_.stats.num_records, "record"),
                            counted(tallies_.stats.num_examples, "prompt"),
                            format_count(static_cast<uint64_t>(tallies_.stats.num_tokens)),
                            tallies_.stats.longest)});
  else
    remarks_.push_back(
        {false, fmt::format("data: {}, {}{}, {} tokens, {} trained on ({:.1f}%), longest {}",
                            counted(tallies_.stats.num_records, "record"),
                            counted(tallies_.stats.num_examples, "example"),
                            judgements.empty() ? "" : fmt::format(" ({})", judgements),
                            format_count(static_cast<uint64_t>(tallies_.stats.num_tokens)),
                            format_count(static_cast<uint64_t>(tallies_.stats.num_label_tokens)),
                            100.0 * static_cast<double>(tallies_.stats.num_label_tokens) /
                                static_cast<double>(tallies_.stats.num_tokens),
                            tallies_.stats.longest)});
  const auto remark = [&](const Tally& tally, const std::string& what) {
    if (tally.count() == 0) return;
    remarks_.push_back({true, fmt::format("data: {} {}: {}", counted(tally.count(), "example"),
                                          what, tally.places())});
  };
  remark(tallies_.too_long,
         context_.rule.answer_tokens > 0
             ? fmt::format("left out as too long: {}", context_.rule.words())
             : fmt::format("left out, because longer than model.max_seq_len = {}",
                           context_.rule.max_seq_len));
  remark_on_long_media();
  remark(tallies_.truncated,
         fmt::format("truncated to {}", counted(context_.rule.max_seq_len, "token")));
  remark(tallies_.labels_cut_off,
         fmt::format("left out, because no label is in the first {} tokens",
                     context_.rule.max_seq_len));
  remark(tallies_.without_labels, "left out, because no token has a label");
  remark(tallies_.others_left_out, "left out, because the other answer of the pair is left out");
}

/// A run with images that loses all of them is probably not what was meant.
void DatasetRemarks::remark_on_long_media() {
  const DatasetTallies::LongMedia& all = tallies_.long_media;
  const int64_t count = all.records.count();
  if (count == 0) return;
  const char* words = all.are_images ? "images" : "features";
  const bool none_is_kept = tallies_.num_kept_with_media == 0;
  remarks_.push_back(
      {true,
       fmt::format("data: {}{} with {} {} left out as too long{}; the longest ({}) has {}, {} of "
                   "them of {}: raise model.max_seq_len{}",
                   none_is_kept ? "all " : "", counted(count, "example"), words,
                   count == 1 ? "is" : "are",
                   none_is_kept ? ", so that the run trains on texts alone" : "", all.place,
                   counted(all.longest, "token"), all.of_media, words,
                   all.are_images ? way_to_smaller_images(context_.model) : "")});
}

std::string DatasetRemarks::advice_on_earlier_reasoning() const {
  const bool keeps = context_.data.thinking == config::Thinking::kKeep;
  std::string advice = keeps ? "it ignores thinking: keep"
                       : takes_whole_answers()
                           ? "the model sees them without it; data.thinking: keep asks "
                             "the template to keep it"
                           : "they are trained on without it; data.thinking: keep "
                             "asks the template to keep it";
  // Elsewhere `split` is refused, or changes nothing.
  const bool can_split =
      !takes_whole_answers() && context_.data.loss_on == config::LossOnChoice::kAssistant;
  return can_split ? advice + "; data.thinking: split trains on each answer with its reasoning"
                   : advice;
}

}  // namespace

std::vector<Remark> remarks_on(const DatasetTallies& tallies, const CheckContext& context) {
  return DatasetRemarks(tallies, context).all();
}

void say(const std::vector<Remark>& remarks) {
  for (const Remark& remark : remarks) {
    if (remark.is_warning)
      log::warn("{}", remark.text);
    else
      log::info("{}", remark.text);
  }
}

}  // namespace sftrun::data
