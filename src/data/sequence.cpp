#include "sftrun/data/sequence.h"
#include "sftrun/data/record_error.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "class_labels.h"
#include "empty_thinking.h"
#include "formats/pair_layouts.h"
#include "judgement.h"
#include "left_out.h"
#include "media_text.h"
#include "preference.h"
#include "record.h"
#include "retrieval_record.h"
#include "roles.h"
#include "sampled_answer.h"
#include "sftrun/core/error.h"
#include "sftrun/core/exact_json.h"
#include "sftrun/core/strings.h"
#include "sftrun/data/prompt.h"
#include "sftrun/templates/builtin_templates.h"
#include "sftrun/templates/chat_labels.h"
#include "text_cells.h"
#include "unread_columns.h"

namespace sftrun::data {
namespace {

using config::LossOnChoice;
using templates::LabelledConversation;

/// A slice of a conversation that becomes one sequence: messages [0, end), of which those from
/// `first_trained` on are trained on.
struct Slice {
  size_t first_trained = 0, end = 0;
};

std::string role_of(const Json& messages, size_t index) {
  return messages[index]["role"].get<std::string>();
}

/// `thinking: split`: a slice ends where a user turn follows an answer. What stands behind the last
/// answer is left out.
std::vector<Slice> split_at_user_turns(const Json& messages, size_t num_prompt_messages) {
  std::vector<Slice> slices;
  size_t begin = num_prompt_messages;
  bool answered = false;
  for (size_t i = num_prompt_messages; i < messages.size(); ++i) {
    const std::string role = role_of(messages, i);
    if (role == "user" && answered) {
      slices.push_back({begin, i});
      begin = i;
      answered = false;
    }
    answered = answered || role == "assistant";
  }
  if (answered || slices.empty()) slices.push_back({begin, messages.size()});
  return slices;
}

/// The variables of templates for keeping the reasoning of earlier turns. Each template reads its
/// own variable.
void ask_to_keep_thinking(Json& kwargs) {
  kwargs["preserve_thinking"] = true;
  kwargs["keep_thinking"] = true;
  kwargs["clear_thinking"] = false;
  kwargs["truncate_history_thinking"] = false;
}

void merge_into(Json& target, const Json& source) {
  for (const auto& [key, value] : source.items()) target[key] = value;
}

templates::LossOn text_loss_on(LossOnChoice choice, size_t num_prompt_messages) {
  switch (choice) {
    case LossOnChoice::kAssistant:
      return templates::LossOn::kAssistant;
    case LossOnChoice::kLastAssistant:
      return templates::LossOn::kLastAssistant;
    case LossOnChoice::kCompletion:
      return num_prompt_messages > 0 ? templates::LossOn::kAssistant
                                     : templates::LossOn::kLastAssistant;
    case LossOnChoice::kAll:
      return templates::LossOn::kAll;
  }
  invariant_failed(__FILE__, __LINE__, "unknown loss_on");
}

void drop_runs_before(LabelledConversation& conversation, size_t first_trained) {
  std::erase_if(conversation.runs, [&](const LabelledConversation::Run& run) {
    return run.message < static_cast<int32_t>(first_trained);
  });
}

/// One run from where the first begins through the end of the text.
void extend_to_end(LabelledConversation& conversation) {
  if (conversation.runs.empty()) return;
  conversation.runs.resize(1);
  conversation.runs[0].span.end = static_cast<uint32_t>(conversation.rendered.text.size());
}

/// The part that text of this origin belongs to; a role inside the template's markers counts as
/// theirs.
Sequence::Part part_of(const templates::OriginSpan& span, const Json& messages) {
  const templates::Origin& origin = span.origin;
  Sequence::Part part{.span = {span.begin, span.end}, .name = "template"};
  if (origin.kind == templates::Origin::Kind::kMessage && origin.field != "role") {
    part.message = origin.message;
    part.name = role_of(messages, static_cast<size_t>(origin.message)) + " " + origin.field;
  } else if (origin.kind == templates::Origin::Kind::kOther) {
    part.name = origin.field.empty() ? "variable" : origin.field;
  }
  return part;
}

}  // namespace

std::vector<Sequence::Part> parts_of(const templates::Rendered& rendered, const Json& messages) {
  std::vector<Sequence::Part> parts;
  for (const templates::OriginSpan& span : rendered.origins)
    parts.push_back(part_of(span, messages));
  return parts;
}

namespace {

Json variables_of(config::Thinking thinking, const Json& configured) {
  Json variables = Json::object();
  if (thinking == config::Thinking::kKeep) ask_to_keep_thinking(variables);
  merge_into(variables, configured);
  return variables;
}

}  // namespace

Json template_variables(const config::DataConfig& data) {
  return variables_of(data.thinking, data.chat_template_kwargs);
}

templates::RenderOptions render_options(const Conversation& conversation, const TextModel& model,
                                        const SequenceOptions& options) {
  templates::RenderOptions render = model.render_defaults;
  render.tools = conversation.tools;
  merge_into(render.kwargs, variables_of(options.thinking, options.chat_template_kwargs));
  merge_into(render.kwargs, conversation.kwargs);
  return render;
}

namespace {

/// The answers' turns, where everything is trained on: only those tell reasoning from other text.
LabelledConversation answers_of(const LabelledConversation& all, const Json& messages,
                                const TextModel& model, const templates::RenderOptions& render) {
  const bool may_think =
      std::any_of(kThinkingMarks.begin(), kThinkingMarks.end(), [&](const ThinkingMarks& marks) {
        return all.rendered.text.find(marks.closer) != std::string::npos;
      });
  if (!may_think) return {};
  try {
    return templates::label_conversation(*model.chat_template, *model.tokenizer, messages, render,
                                         templates::LossOn::kAssistant);
  } catch (const DataError&) {  // the template leaves an answer out
    return {};
  }
}

std::vector<WeightedSpan> answers_with_weights(const LabelledConversation& conversation) {
  std::vector<WeightedSpan> answers;
  for (const LabelledConversation::Run& run : conversation.runs)
    if (run.weight != 1) answers.push_back({run.span, run.weight});
  return answers;
}

/// Labels of weight 0 lose their mask.   @param answers with other weights than 1
std::vector<float> weights_of(const LabelledConversation& conversation,
                              const std::vector<WeightedSpan>& answers, const LabelWeights& rules,
                              templates::LabelledTokens& tokens) {
  std::vector<WeightedSpan> matches;
  for (const LabelledConversation::Run& run : conversation.runs)
    rules.add_matches(conversation.rendered.text, run.span, matches);
  return weigh_labels(tokens.spans, answers, matches, tokens.mask);
}

Sequence render_slice(const Json& messages, const Slice& slice, const TextModel& model,
                      const templates::RenderOptions& render, const SequenceOptions& options,
                      size_t num_prompt_messages, const RecordMedia* media) {
  Json shown = messages;
  shown.erase(shown.begin() + static_cast<ptrdiff_t>(slice.end), shown.end());
  LabelledConversation conversation =
      templates::label_conversation(*model.chat_template, *model.tokenizer, shown, render,
                                    text_loss_on(options.loss_on, num_prompt_messages));
  if (options.loss_on != LossOnChoice::kAll) drop_runs_before(conversation, slice.first_trained);
  const std::vector<WeightedSpan> answers = answers_with_weights(conversation);
  if (options.loss_on == LossOnChoice::kCompletion && num_prompt_messages > 0) {
    extend_to_end(conversation);
  }
  const LeftOut left_out = find_left_out(conversation, shown, *model.chat_template, render);
  if (options.loss_on != LossOnChoice::kAll) drop_empty_answers(conversation, shown);
  const int64_t num_empty_answers = count_empty_answers(conversation, shown);
  const std::vector<tokenizer::ByteSpan> empty_thinking =
      options.loss_on == LossOnChoice::kAll
          ? find_empty_thinking(answers_of(conversation, shown, model, render))
          : find_empty_thinking(conversation);
  if (options.empty_thinking == config::EmptyThinking::kDrop)
    drop_spans(conversation.runs, empty_thinking);
  std::vector<PlacedMedia> placed;
  if (media != nullptr) placed = place_media(conversation, shown, *media);
  templates::LabelledTokens tokens = templates::tokenize_labelled(*model.tokenizer, conversation);
  const int64_t num_control_tokens = count_control_tokens(conversation, tokens, *model.tokenizer);
  std::vector<float> weights = weights_of(conversation, answers, options.label_weights, tokens);
  Sequence sequence{.ids = std::move(tokens.ids),
                    .mask = std::move(tokens.mask),
                    .weights = std::move(weights),
                    .spans = std::move(tokens.spans),
                    .num_empty_answers = num_empty_answers,
                    .num_empty_thinking = std::ssize(empty_thinking),
                    .num_control_tokens = num_control_tokens,
                    .left_out = left_out};
  if (options.with_parts) sequence.parts = parts_of(conversation.rendered, messages);
  sequence.text = std::move(conversation.rendered.text);
  if (media != nullptr) note_media(sequence, placed, *media);
  return sequence;
}

bool has_label(const Sequence& sequence) {
  return std::find(sequence.mask.begin(), sequence.mask.end(), 1) != sequence.mask.end();
}

/// Whether the first turn after the system message is the assistant's.
bool begins_with_answer(const Json& messages) {
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string role = role_of(messages, i);
    if (role != "system" && role != "developer") return role == "assistant";
  }
  return false;
}

std::vector<Sequence> build_conversation(const Conversation& conversation, const TextModel& model,
                                         const SequenceOptions& options,
                                         const RecordMedia* media = nullptr) {
  const templates::RenderOptions render = render_options(conversation, model, options);
  const Json& messages = conversation.messages;
  const size_t num_prompt = conversation.num_prompt_messages;
  const bool split =
      options.thinking == config::Thinking::kSplit && options.loss_on == LossOnChoice::kAssistant;
  const std::vector<Slice> slices = split ? split_at_user_turns(messages, num_prompt)
                                          : std::vector<Slice>{{num_prompt, messages.size()}};
  std::vector<Sequence> sequences;
  for (const Slice& slice : slices) {
    Sequence sequence = render_slice(messages, slice, model, render, options, num_prompt, media);
    const bool is_last = slice.end == slices.back().end;
    if (has_label(sequence) || (is_last && sequences.empty()))
      sequences.push_back(std::move(sequence));
  }
  sequences.front().unknown_roles = unknown_roles(messages, model.chat_template->source());
  sequences.front().begins_with_answer = begins_with_answer(messages);
  return sequences;
}

bool uses_tools(const Conversation& conversation) {
  return !conversation.tools.is_null() ||
         std::any_of(conversation.messages.begin(), conversation.messages.end(),
                     [](const Json& message) {
                       return message.contains("tool_calls") || message.contains("function_call");
                     });
}

Sequence build_text(PlainText record, const TextModel& model, const SequenceOptions& options,
                    RecordMedia* media) {
  std::vector<PlacedMedia> placed;
  if (media != nullptr) placed = place_media(record, *media);
  Sequence sequence{.text = record.prompt + record.completion};
  if (const auto end = model.tokenizer->eos_id(); options.ends_texts && end) {
    const std::string text = model.tokenizer->id_to_token(*end);
    if (!sequence.text.ends_with(text)) sequence.text += text;
  }
  const auto prompt_bytes = static_cast<uint32_t>(record.prompt.size());
  const bool is_classed = options.form == config::ExampleForm::kClassed;
  tokenizer::Encoding encoding =
      is_classed ? model.tokenizer->encode_with_spans(sequence.text, /*add_special_tokens=*/true)
      : options.append_eos ? encode_whole_text(*model.tokenizer, sequence.text)
                           : encode_open_text(*model.tokenizer, sequence.text);
  sequence.ids = std::move(encoding.ids);
  sequence.spans = std::move(encoding.spans);
  const auto text_bytes = static_cast<uint32_t>(sequence.text.size());
  const auto eos = model.tokenizer->eos_id();
  const bool everything = options.loss_on == LossOnChoice::kAll;
  for (size_t i = 0; i < sequence.ids.size(); ++i) {
    const bool is_end = i + 1 == sequence.ids.size() && eos && sequence.ids[i] == *eos;
    const tokenizer::ByteSpan& span = sequence.spans[i];
    // A space that the tokenizer itself puts before the completion.
    const bool is_prefix = span.begin == span.end && span.begin == prompt_bytes &&
                           !model.tokenizer->is_special(sequence.ids[i]);
    const bool is_completion = span.end > prompt_bytes || is_prefix;
    sequence.mask.push_back(everything || is_end || is_completion ? 1 : 0);
  }
  std::vector<WeightedSpan> matches;
  options.label_weights.add_matches(sequence.text, {everything ? 0 : prompt_bytes, text_bytes},
                                    matches);
  sequence.weights = weigh_labels(sequence.spans, {}, matches, sequence.mask);
  if (options.with_parts) {
    if (prompt_bytes > 0) sequence.parts.push_back({{0, prompt_bytes}, "prompt"});
    sequence.parts.push_back(
        {{prompt_bytes, text_bytes}, prompt_bytes > 0 ? "completion" : "text"});
  }
  if (media != nullptr) note_media(sequence, placed, *media);
  return sequence;
}

}  // namespace

namespace {

/// The template is tested with the variables of the run, which it may require.
MessageForm form_for(TextModel model, const SequenceOptions& options) {
  merge_into(model.render_defaults.kwargs,
             variables_of(options.thinking, options.chat_template_kwargs));
  return MessageForm(model);
}

/// Whether an answer that the template writes ends in a token at which the model can stop.
bool ends_answers(std::string_view source, const std::string& name, TextModel model) {
  model.chat_template = std::make_shared<const templates::ChatTemplate>(source, name);
  const Json messages = {{{"role", "user"}, {"content", "a"}},
                         {{"role", "assistant"}, {"content", "b"}}};
  const Sequence sequence = build_conversation({.messages = messages}, model, {}).front();
  for (size_t i = 0; i < sequence.ids.size(); ++i) {
    const bool ends = model.tokenizer->is_special(sequence.ids[i]) ||
                      std::find(model.stop_ids.begin(), model.stop_ids.end(), sequence.ids[i]) !=
                          model.stop_ids.end();
    if (sequence.mask[i] != 0 && ends) return true;
  }
  return false;
}

/// What model.chat_template may be. With other built-in ones the model would not stop.
std::string fitting_templates(const TextModel& model) {
  std::vector<std::string> fitting = templates::builtin_template_names();
  std::erase_if(fitting, [&](const std::string& name) {
    return !ends_answers(templates::builtin_template(name), name, model);
  });
  return fitting.empty()
             ? "a Jinja file that ends answers with a special token of its tokenizer"
             : fmt::format(
                   "a Jinja file, or to a built-in template whose end token the tokenizer has: {}",
                   join(fitting, ", "));
}

/// With a head of scores, what is read of a sequence is one row; no token is predicted. All tokens have a label, so that a sequence is left
/// out only where it is too long, or has one token.
void give_targets(std::vector<Sequence>& sequences, const Json& record,
                  const SequenceOptions& options, const std::string& where) {
  using enum config::HeadKind;
  if (options.head == kLanguage || options.head == kEmbedding) return;
  const std::vector<float> targets =
      options.head == kReward ? std::vector<float>{margin_of(record, where)}
                              : class_numbers(record, options.classes, options.problem_type, where);
  for (Sequence& sequence : sequences) {
    sequence.mask.assign(sequence.ids.size(), 1);
    sequence.weights.clear();
    sequence.targets = targets;
  }
}

}  // namespace

SequenceBuilder::SequenceBuilder(RecordFormat format, TextModel model, SequenceOptions options)
    : format_(format),
      model_(std::move(model)),
      options_(std::move(options)),
      form_(form_for(model_, options_)) {
  if (options_.form != config::ExampleForm::kPrompt) return;
  TextModel asked = model_;
  merge_into(asked.render_defaults.kwargs,
             variables_of(options_.thinking, options_.chat_template_kwargs));
  const bool has_template = model_.chat_template != nullptr;
  if (options_.chat == true && !has_template)
    throw ConfigError("the model has no chat template", "train.rollouts.chat",
                      "remove it, or set model.chat_template");
  prompts_ =
      std::make_shared<const PromptBuilder>(std::move(asked), options_.chat.value_or(has_template));
}

std::vector<Sequence> SequenceBuilder::build(const Json& given, const std::string& where,
                                             const std::filesystem::path& folder) const {
  if (prompts_ != nullptr) {
    Sequence sequence = prompts_->sequence_of(given, where, folder, stamps_);
    sequence.is_prompt = true;
    sequence.record_text = to_json_text(given);
    sequence.differs_in_class = model_.tokenizer->differs_in_class(sequence.text);
    return {std::move(sequence)};
  }
  if (format_ == RecordFormat::kSampled) {
    Sequence sequence = sequence_of_ids(given, model_, options_, where);
    require_embedded(sequence.ids, model_, where);
    return {std::move(sequence)};
  }
  Json room;
  const bool is_classed = options_.form == config::ExampleForm::kClassed,
             is_retrieval = options_.form == config::ExampleForm::kRetrieval;
  const Json& record = is_classed ? with_text_of_prompt(given, room) : given;
  std::vector<Sequence> sequences = is_retrieval
                                        ? retrieval_sequences(record, model_, options_, where)
                                        : build_unchecked(record, where, folder);
  give_targets(sequences, record, options_, where);
  if (options_.form == config::ExampleForm::kSampled) set_sample(sequences.at(0), record, where);
  for (Sequence& sequence : sequences) {
    sequence.differs_in_class = model_.tokenizer->differs_in_class(sequence.text);
    require_one_bos(sequence.ids, sequence.spans, *model_.tokenizer, where);
    require_embedded(sequence.ids, model_, where);
    if (options_.keeps_records) sequence.record_text = to_json_text(given);
  }
  return sequences;
}

namespace {

/// Columns of images and videos that are read are not unread.
std::vector<std::string> without_images(std::vector<std::string> columns) {
  std::erase_if(columns, is_visual_column);
  return columns;
}

/// What the model would read, and the record does not have.
MediaWanted wanted_of(const Json& record, RecordFormat format, const RecordMedia* media) {
  if (media == nullptr) return {};
  const bool lacks_images =
      media->reads_images() && !has_image_columns(record) && !has_image_parts(record, format);
  return {.images = lacks_images,
          .videos = lacks_images && media->input().videos != nullptr,
          .features = media->reads_features() && media->num_features() == 0};
}

/// Answers that become sequences together: two that are compared, or one.
struct AnswerGroup {
  std::vector<NamedShape> shapes;
  Judgement judgement = Judgement::kNone;
};

std::vector<AnswerGroup> answer_groups_of(const Json& record, RecordFormat format,
                                          config::ExampleForm form, const TemplateTraits& traits,
                                          const std::string& where) {
  std::vector<AnswerGroup> groups;
  if (form == config::ExampleForm::kSampled) {
    groups.push_back({answer_behind_prompt(record, format, traits, where)});
    return groups;
  }
  if (form != config::ExampleForm::kJudged) {
    groups.push_back({shapes_of(record, format, traits, where)});
    return groups;
  }
  for (JudgedShape& judged : judged_shapes(record, format, traits, where)) {
    AnswerGroup& group = groups.emplace_back();
    group.shapes.push_back(std::move(judged.answer));
    group.judgement = judged.is_desirable ? Judgement::kDesirable : Judgement::kUndesirable;
  }
  return groups;
}

/// Texts alone are looked at.
bool has_messages_as_text(const std::vector<AnswerGroup>& groups) {
  return std::any_of(groups.begin(), groups.end(), [](const AnswerGroup& group) {
    return std::any_of(group.shapes.begin(), group.shapes.end(), [](const NamedShape& one) {
      const auto* text = std::get_if<PlainText>(&one.shape);
      return text != nullptr &&
             (begins_like_messages(text->prompt) || begins_like_messages(text->completion));
    });
  });
}

/// Special tokens beside those that begin and end every text: the template may be in the text.
bool has_control_tokens(const Sequence& sequence, const tokenizer::Tokenizer& tokenizer) {
  return std::any_of(sequence.ids.begin(), sequence.ids.end(), [&](const tokenizer::TokenId id) {
    return tokenizer.is_special(id) && id != tokenizer.bos_id() && id != tokenizer.eos_id();
  });
}

void append_sequences(std::vector<Sequence>& all, std::vector<Sequence> more) {
  std::move(more.begin(), more.end(), std::back_inserter(all));
}

}  // namespace

std::vector<Sequence> SequenceBuilder::build_unchecked(const Json& given, const std::string& where,
                                                       const std::filesystem::path& folder) const {
  const config::RecordFormatInfo& info = config::format_info(format_);
  const bool has_template = model_.chat_template != nullptr;
  Json usual;
  const Json& original =
      info.is_pair
          ? with_pair_columns(given, {.exists = has_template, .writes_calls = form_.writes_calls()},
                              where, usual)
          : given;
  const auto media = media_of_record(original, format_, model_, {where, folder, stamps_});
  Json room;
  const Json& record = media != nullptr ? media->marked(original, format_, room) : original;
  const bool reads_images = media != nullptr && media->reads_images();
  std::vector<AnswerGroup> groups = answer_groups_of(
      record, format_, options_.form,
      {.exists = has_template, .writes_calls = form_.writes_calls(), .reads_images = reads_images},
      where);
  RecordShape& shape = groups.front().shapes.front().shape;
  const bool is_compared = info.is_pair || options_.form == config::ExampleForm::kJudged ||
                           options_.form == config::ExampleForm::kSampled;
  std::vector<std::string> unread = unread_columns(record, format_, shape, options_.form);
  if (reads_images) unread = without_images(std::move(unread));
  std::vector<std::string> unread_files =
      unread_media(record, wanted_of(record, format_, media.get()));
  const bool is_plain = std::holds_alternative<PlainText>(shape);
  if (is_plain && is_compared) {
    std::vector<Sequence> answers;
    for (const AnswerGroup& group : groups)
      append_sequences(answers, sequences_of_texts(group.shapes, group.judgement, model_, options_,
                                                   media.get()));
    answers.front().unread_columns = std::move(unread);
    answers.front().unread_media = std::move(unread_files);
    answers.front().has_idle_marker = media != nullptr && media->has_idle_marker();
    answers.front().has_messages_as_text = has_messages_as_text(groups);
    answers.front().is_outside_template = has_template && !answers.front().has_messages_as_text &&
                                          !has_control_tokens(answers.front(), *model_.tokenizer);
    return answers;
  }
  if (const auto* plain = std::get_if<PlainText>(&shape)) {
    Sequence sequence = build_text(*plain, model_, options_, media.get());
    sequence.num_empty_answers = !info.is_text && trim(plain->completion).empty() ? 1 : 0;
    sequence.unread_columns = std::move(unread);
    sequence.unread_media = std::move(unread_files);
    sequence.has_idle_marker = media != nullptr && media->has_idle_marker();
    sequence.has_messages_as_text = !info.is_text && has_messages_as_text(groups);
    return {std::move(sequence)};
  }
  if (!has_template) {
    const bool has_calls = uses_tools(std::get<Conversation>(shape));
    throw RecordError(
        "this record is a conversation, and the model has no chat template", where,
        fmt::format("use the model's instruct version, or set model.chat_template to {}",
                    has_calls ? "a Jinja file that writes calls of tools (the built-in "
                                "templates do not)"
                              : fitting_templates(model_)),
        "use the model's instruct version, or records with \"prompt\" or \"text\" strings");
  }
  std::vector<Json*> conversations;
  for (AnswerGroup& group : groups)
    for (NamedShape& one : group.shapes)
      conversations.push_back(&std::get<Conversation>(one.shape).messages);
  for (Json* messages : conversations)
    if (media != nullptr) media->take(*messages);
  try {
    for (Json* messages : conversations) form_.apply(*messages);
    TextModel other;
    const TextModel* model = &model_;
    for (Json* messages : conversations) model = &model_for_videos(model_, *messages, other);
    std::vector<Sequence> sequences;
    if (is_compared) {
      for (const AnswerGroup& group : groups)
        append_sequences(sequences, sequences_of_conversations(group.shapes, group.judgement,
                                                               *model, options_, media.get()));
    } else {
      sequences = build_conversation(std::get<Conversation>(shape), *model, options_, media.get());
    }
    sequences.front().unread_columns = std::move(unread);
    sequences.front().unread_media = std::move(unread_files);
    sequences.front().unread_turn_keys =
        unread_turn_keys(record, format_, model_.chat_template->source(), options_.form);
    sequences.front().has_two_systems = has_two_systems(record, format_);
    sequences.front().has_idle_marker = media != nullptr && media->has_idle_marker();
    sequences.front().has_null_arguments = has_null_arguments(record, format_);
    return sequences;
  } catch (const DataError& error) {
    if (error.where().starts_with(where)) throw;  // of images
    throw DataError(error.message(), error.where().empty() ? where : where + ", " + error.where(),
                    error.fix());
  }
}

}  // namespace sftrun::data
