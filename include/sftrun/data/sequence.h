#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/config/run_config.h"
#include "sftrun/data/example.h"
#include "sftrun/data/json_lines.h"
#include "sftrun/data/label_weights.h"
#include "sftrun/data/media.h"
#include "sftrun/data/message_form.h"
#include "sftrun/data/text_model.h"

/// Converts a record to token sequences with a label mask.
namespace sftrun::data {

class MediaStamps;
class PromptBuilder;

using config::RecordFormat;
std::string name_of(RecordFormat format);  ///< as `data.format` has it

/// The format of a record, and why: the first of config::kRecordFormats whose keys the record has;
/// for objectives on pairs the first of pairs.
struct DetectedFormat {
  RecordFormat format = RecordFormat::kText;
  std::string reason;  ///< "it has \"messages\""
};
/// @param where "file:line"   @throws DataError listing the record's keys and the supported ones
DetectedFormat detect_format(const Json& record, const std::string& where,
                             config::Objective objective = config::Objective::kSft);
/// For prompts that a run or a command answers; an answer in the record is ignored.
/// @throws DataError for a record without a prompt
DetectedFormat detect_prompt_format(const Json& record, const std::string& where);
/// For commands that read one answer of a record without a run's configuration: the same for sft,
/// with errors that say which keys to write. A pair is refused, also one that has other keys.
DetectedFormat detect_input_format(const Json& record, const std::string& where);
/// For commands that score records by a head of scores: the text, prompt or conversation of a record, whether or not it has a class.
DetectedFormat detect_scored_format(const Json& record, const std::string& where);
/// Whether a record has two answers to compare, "chosen" and "rejected".
bool is_preference(const Json& record);
/// Whether a record has one answer and says whether it is desirable, as objectives on judged answers
/// read it: "label" or "kto_tag" is true or false, also as text, or 1 or 0 beside a "completion".
bool has_judgement(const Json& record);
/// Whether the chat template renders such a record. Else its texts are taken as they are.
bool is_rendered(const Json& record, RecordFormat format, bool has_chat_template);

/// Parts of a conversation that the chat template does not write to the text.
struct LeftOut {
  int64_t tool_calls = 0;  ///< answers with a label that are written without their tool calls
  int64_t reasoning = 0;   ///< 1: the last answer with a label is written without its reasoning
  int64_t earlier_reasoning = 0;  ///< earlier answers without their reasoning
  int64_t tools = 0;              ///< 1: the record's tools are not written
  int64_t answer_texts =
      0;                 ///< answers with a label of which text outside the reasoning is missing
  int64_t messages = 0;  ///< other messages of which text is missing
};

/// A sequence, before it is truncated and its labels are shifted.
struct Sequence {
  std::vector<tokenizer::TokenId> ids;
  std::vector<uint8_t> mask;   ///< 1: the token has a label
  std::vector<float> weights;  ///< of the labels, as long as `mask`; empty: all are 1
  std::vector<tokenizer::ByteSpan>
      spans;         ///< bytes of `text` that each token covers; empty for added BOS and EOS
  std::string text;  ///< what was tokenised
  struct Part {
    tokenizer::ByteSpan span;
    std::string name;      ///< "user content", "template", "completion", …
    int32_t message = -1;  ///< index into the record's messages, -1 for none
  };
  std::vector<Part> parts;           ///< in order, covering `text`; only when asked for
  std::vector<SequenceMedia> media;  ///< in order
  Judgement judgement = Judgement::kNone;
  std::vector<float> targets;     ///< as Example::targets
  int64_t num_end_tokens = 0;     ///< special tokens that stay at its end where it is cut
  int64_t num_prompt_tokens = 0;  ///< of a compared, judged or sampled answer: tokens before it
  double score = 0;               ///< of a sampled answer
  ScoreKind score_kind = ScoreKind::kNone;
  uint64_t group = 0;         ///< Example::group
  bool is_cut_short = false;  ///< Example::is_cut_short
  bool is_prompt = false;     ///< without labels, to be answered by the run
  std::string record_text;    ///< Example::record_text
  /// Log p of each token of a sampled answer (LabelColumn), NaN of others; empty: not known
  std::vector<float> old_logps, sampled_logps;
  int64_t num_empty_answers = 0;   ///< empty answers that are trained on
  int64_t num_empty_thinking = 0;  ///< answers that begin with empty reasoning
  int64_t num_control_tokens = 0;  ///< messages whose own text holds control tokens of the model
  LeftOut left_out;
  // Of the record; on its first sequence.
  std::vector<std::string> unknown_roles, unread_columns, unread_turn_keys;
  /// Entries of `data.fields` that would read columns that seem to hold images, as "images: picture";
  /// of a record without any that is read
  std::vector<std::string> unread_media;
  bool differs_in_class =
      false;  ///< transformers 5 gives other tokens (tokenizer::ClassDifference)
  bool begins_with_answer = false;  ///< the conversation's first turn is the assistant's
  /// `<image>` in a text of a record without a column of images, for a model that reads images
  bool has_idle_marker = false;
  /// Compared or judged texts without control tokens, of a model with a chat template
  bool is_outside_template = false;
  bool has_messages_as_text = false;  ///< a text that begins like a list of messages
  bool has_two_systems = false;       ///< a "system" column beside a turn of that role
  bool has_null_arguments = false;    ///< nulls inside of tools or tool calls, which are left out
};

struct SequenceOptions {
  config::ExampleForm form = config::ExampleForm::kAnswer;  ///< of pairs and judged answers too
  config::HeadKind head = config::HeadKind::kLanguage;      ///< of scores: every token has a label
  std::vector<std::string> classes = {};                    ///< of texts with classes
  config::ProblemType problem_type = config::ProblemType::kSingleLabel;
  int64_t negatives = 0;                                ///< of queries: texts that do not fit
  std::string query_prompt = {}, document_prompt = {};  ///< before queries, and before other texts
  config::LossOnChoice loss_on = config::LossOnChoice::kAssistant;
  config::Thinking thinking = config::Thinking::kTemplate;
  config::EmptyThinking empty_thinking = config::EmptyThinking::kWarn;
  Json chat_template_kwargs = Json::object();
  LabelWeights label_weights = {};
  bool ends_texts =
      false;  ///< texts with classes: with an EOS, unless one is there, as pairs have it
  bool append_eos =
      true;  ///< after texts and string completions; conversations end as their template has it
  bool with_parts = false;
  bool keeps_records = false;     ///< Example::record_text, also of other records than prompts
  std::optional<bool> chat = {};  ///< of prompts: RolloutsConfig::chat
};

/// The variables with which a run's conversations are rendered: those by which templates keep the
/// reasoning of earlier turns for `thinking: keep`, and the configured ones. A record's own are added.
Json template_variables(const config::DataConfig& data);

/// Converts records of one format to sequences. `loss_on` decides which tokens have a label (mask):
///
///   record                        assistant        last_assistant  completion        all
///   messages, sharegpt, alpaca    assistant turns  last turn       last turn         everything
///   prompt_completion, messages   turns in         last turn       everything after  everything
///                                 `completion`                     the prompt
///   prompt_completion, strings    completion       completion      completion        everything
///   text                          everything       everything      everything        everything
///
/// Conversations (the first two rows of the table) are rendered by the chat template and get only
/// the special tokens that it writes. An alpaca record is a user turn "instruction\n\ninput" and an
/// assistant turn; for a model without a chat template, the strings "instruction\n\ninput\n\n" and
/// output. Texts and strings get the tokenizer's special tokens, and an EOS at the end; a token
/// that spans prompt and completion has a label.
///
/// A preference record gives two sequences, of its chosen and its rejected answer (preference.h).
/// With `form` kJudged each record has a judgement, and every sequence is a judged answer behind its
/// prompt: of a record with one answer its "completion", "output" or last turn; of a preference
/// record both, the chosen one desirable and the rejected one not (judgement.h).
///
/// A record may have "tools" and "chat_template_kwargs", which override the configuration's; a
/// message may have `"train": false`, or a `"weight"` that its labels have in the loss (0: none), which
/// `label_weights` multiplies. `thinking: split` with `loss_on: assistant`
/// makes one sequence per user turn with its answers and everything before it. So every answer is
/// trained with its reasoning, even if the template drops that of earlier turns. `thinking: keep`
/// sets the variables by which templates keep it.
///
/// Messages reach the template in the form that it reads (MessageForm).
///
/// With `form` kPrompt a record gives the tokens of its prompt (PromptBuilder), without labels, and its
/// own text: the run writes the answer, and rewards read the record.
///
/// Where the model reads images, what the template writes for one becomes the text of its processor before
/// the text is tokenised, as transformers' processors do it. Tokens of images, and of the markers
/// around and between them, have no label, whatever `loss_on` says.
///
/// Immutable; safe to use from several threads.
class SequenceBuilder {
 public:
  SequenceBuilder(RecordFormat format, TextModel model, SequenceOptions options);

  /// @param where "file:line", for errors
  /// @param folder of the record's file: paths of images are relative to it
  /// @return one sequence, or with `thinking: split` one or more; of a preference record two
  /// @throws DataError for keys that are missing or of the wrong type, for conversations when the
  /// model has no chat template, for what the template refuses, and for images that cannot be read
  std::vector<Sequence> build(const Json& record, const std::string& where,
                              const std::filesystem::path& folder = {}) const;

  /// Notes the files of images and features of all records.   @param stamps must outlive the builder
  void note_media_in(MediaStamps& stamps) { stamps_ = &stamps; }

 private:
  std::vector<Sequence> build_unchecked(const Json& given, const std::string& where,
                                        const std::filesystem::path& folder) const;

  RecordFormat format_;
  TextModel model_;
  SequenceOptions options_;
  MessageForm form_;
  std::shared_ptr<const PromptBuilder> prompts_;  // of `form` kPrompt
  MediaStamps* stamps_ = nullptr;
};

}  // namespace sftrun::data
