#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "command_ranks.h"
#include "commands.h"
#include "embed_records.h"
#include "generated_record.h"
#include "session.h"
#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/core/plural.h"
#include "sftrun/data/batch_plan.h"
#include "sftrun/data/input_records.h"
#include "sftrun/data/parallel_for.h"
#include "sftrun/data/record_error.h"
#include "sftrun/data/scored_text.h"
#include "sftrun/data/sequence.h"
#include "sftrun/model/stage.h"
#include "sftrun/parallel/counted_sums.h"
#include "shared_passes.h"
#include "teacher.h"

namespace sftrun::engine {
namespace {

struct ScoredRecord {
  data::InputRecord input;
  std::vector<int32_t> tokens;
  std::vector<uint8_t> mask;  // 1: this token's log-probability counts
  std::vector<data::SequenceMedia> media;
  double logprob = 0;
  int64_t num_labelled = 0;
  std::vector<double> scores;  // of a head of scores
};

/// All but the first for text, the completion for prompt/completion, the assistant turns for
/// messages. Texts are scored as they are: no end token is appended.
/// @param head of scores: texts are read as in training; null: a language-model head
void tokenize(ScoredRecord& scored, const data::TextModel& text, const spec::ScoreSpec* head) {
  const auto& [line, given, where, folder] = scored.input;
  try {
    // A head judges what was generated, as rewards do; a language model scores what the data says.
    const data::Json answered = head != nullptr ? with_generated(given, where) : data::Json();
    const data::Json& record = head != nullptr ? answered : given;
    const data::SequenceBuilder builder =
        head == nullptr ? data::SequenceBuilder(data::detect_input_format(record, where).format,
                                                text, {.append_eos = false})
                        : data::scored_text_builder(record, where, text, *head);
    const data::Sequence sequence = builder.build(record, where, folder).at(0);
    scored.tokens = sequence.ids;
    scored.mask = sequence.mask;
    scored.media = sequence.media;
  } catch (const data::RecordError& error) {
    throw error.without_settings();
  }
}

std::vector<ScoredRecord> tokenized(std::vector<data::InputRecord> inputs,
                                    const data::TextModel& text, const spec::ScoreSpec* head) {
  std::vector<ScoredRecord> records(inputs.size());
  data::parallel_for(static_cast<int64_t>(inputs.size()), at::get_num_threads(), [&](int64_t i) {
    const auto index = static_cast<size_t>(i);
    records[index].input = std::move(inputs[index]);
    tokenize(records[index], text, head);
  });
  return records;
}

void warn_of_idle_variables(const app::ScoreRequest& request,
                            const std::vector<ScoredRecord>& records, const data::TextModel& text) {
  if (!request.model.chat_template_kwargs) return;
  const bool renders = std::any_of(records.begin(), records.end(), [&](const ScoredRecord& scored) {
    const auto& [line, record, where, folder] = scored.input;
    return data::is_rendered(record, data::detect_scored_format(record, where).format,
                             text.chat_template != nullptr);
  });
  warn_of_idle_template_flag(request.model, {&text}, renders);
}

data::Example to_example(const ScoredRecord& scored) {
  data::Example example;
  example.tokens = scored.tokens;
  example.media = scored.media;
  example.labels.assign(scored.tokens.size(), data::kIgnoreIndex);
  for (size_t i = 0; i + 1 < scored.tokens.size(); ++i) {
    if (scored.mask[i + 1]) example.labels[i] = scored.tokens[i + 1];
  }
  return example;
}

/// The records that have tokens, as one batch.
data::Batch batch_of(const std::vector<ScoredRecord>& records, size_t first, size_t end) {
  std::vector<data::Example> examples;
  std::vector<data::Bin> bins;
  for (size_t i = first; i < end; ++i) {
    if (records[i].tokens.empty()) continue;
    bins.push_back({static_cast<int64_t>(examples.size())});
    examples.push_back(to_example(records[i]));
  }
  const auto count = static_cast<int64_t>(bins.size());
  return data::make_batch(data::ExampleStore::in_memory(examples), bins, 0, count);
}

/// The batch on its device.   @throws DataError naming the record, for images and features that cannot be read
model::PackedBatch packed_records(const std::vector<ScoredRecord>& records, size_t first,
                                  size_t end, model::Decoder& decoder) {
  try {
    return model::prepare_batch(batch_of(records, first, end), decoder.rope(),
                                decoder.batch_target(), {});
  } catch (const data::MediaError& error) {
    int64_t document = error.document();
    size_t record = first;
    while (records[record].tokens.empty() || document-- > 0) ++record;
    throw data::error_in_record(error, records[record].input.where, /*may_be_left_out=*/false);
  }
}

/// @param scores [records] of this rank: receives the sums of these
void score(const std::vector<ScoredRecord>& records, size_t first, size_t end,
           const model::Stage& stage, std::vector<double>& scores) {
  model::Decoder& decoder = stage.decoder();
  const model::PackedBatch packed = packed_records(records, first, end, decoder);
  const at::Tensor losses = stage.token_losses(packed).cpu();
  const float* loss = losses.const_data_ptr<float>();
  for (size_t i = first; i < end; ++i)
    for (size_t token = 1; token < records[i].tokens.size(); ++token)
      if (records[i].mask[token]) scores[i] -= static_cast<double>(*loss++);
}

/// The same of a head of scores: `scores` is [records, labels].
void score_heads(const std::vector<ScoredRecord>& records, size_t first, size_t end,
                 const model::Stage& stage, std::vector<double>& scores) {
  const model::PackedBatch packed = packed_records(records, first, end, stage.decoder());
  at::Tensor own;
  model::MicroBatchRun run(packed, [&](const at::Tensor& of_head) -> layers::ScoredLoss {
    own = of_head.to(at::kDouble).cpu().contiguous();
    return {at::zeros({}, of_head.options().dtype(at::kDouble)), {}};
  });
  stage.forward(run);
  stage.loss(run);
  if (!own.defined()) return;  // another stage has the head, or there are no records
  const auto labels = static_cast<size_t>(own.size(1));
  const double* score = own.const_data_ptr<double>();
  for (size_t i = first; i < end; ++i) {
    if (records[i].tokens.empty()) continue;
    std::copy_n(score, labels, scores.begin() + static_cast<std::ptrdiff_t>(i * labels));
    score += labels;
  }
}

/// @return 0, or the exit code of a stop that any rank was asked for
int score(std::vector<ScoredRecord>& records, const LoadedModel& model, Rank& rank) {
  const parallel::Mesh mesh = model.mesh(rank);
  const model::Stage stage = model.stage();
  const std::vector<Neighbours> pieces =
      pieces_for_passes(records.size(), [&](size_t i) { return std::ssize(records[i].tokens); });
  const auto& head = model.checkpoint->arch().score;
  const size_t width = head ? static_cast<size_t>(head->num_labels) : 1;
  std::vector<double> own(records.size() * width);
  const auto stop = [&] { return rank.stop_of_any_rank(); };
  const int code = share_passes(mesh, pieces.size(), stop, [&](const SharedPass& pass) {
    const auto [first, end] = pass.own ? pieces[*pass.own] : Neighbours{};
    head ? score_heads(records, first, end, stage, own) : score(records, first, end, stage, own);
  });
  if (code != 0) return code;
  const std::vector<double> all = parallel::counted_sums(rank.comm(), mesh, own);
  for (size_t i = 0; i < all.size(); ++i) {
    ScoredRecord& scored = records[i / width];
    if (head) scored.scores.resize(width);
    (head ? scored.scores[i % width] : scored.logprob) = all[i];
  }
  for (ScoredRecord& scored : records)
    for (size_t token = 1; token < scored.tokens.size(); ++token)
      scored.num_labelled += scored.mask[token] != 0 ? 1 : 0;
  return 0;
}

void require_finite_scores(const std::vector<ScoredRecord>& records,
                           const weights::Checkpoint& checkpoint, const std::string& model) {
  for (const ScoredRecord& scored : records) {
    if (std::isfinite(scored.logprob) &&
        std::all_of(scored.scores.begin(), scored.scores.end(),
                    [](double score) { return std::isfinite(score); }))
      continue;
    weights::require_finite(checkpoint, model);
    throw DataError(scored.scores.empty() ? "the record's log-probability is NaN or infinite"
                                          : "the record's score is NaN or infinite",
                    scored.input.where,
                    "use --dtype fp32; if that does not help, the weights are broken");
  }
}

std::string lines_of(const std::vector<ScoredRecord>& records, const std::string& output) {
  std::string lines;
  for (const ScoredRecord& scored : records) {
    const bool empty = scored.num_labelled == 0;  // of nothing there is no probability
    const data::Json additions = {{"logprob", empty ? data::Json() : data::Json(scored.logprob)},
                                  {"tokens", scored.num_labelled}};
    lines += data::output_line(scored.input, additions, output) + "\n";
  }
  return lines;
}

/// Of a classifier: the class, or the classes, and a probability for each. A record that has its own label keeps it.
data::Json additions_of(const ScoredRecord& scored, const spec::ScoreSpec& head) {
  const bool is_empty = scored.tokens.empty();
  if (head.num_labels == 1)
    return {{"score", is_empty ? data::Json() : data::Json(scored.scores[0])}};
  const bool has_several = head.problem_type == "multi_label_classification";
  const std::string key = has_several ? "labels" : "label";
  const std::string column = scored.input.record.contains(key) ? "predicted_" + key : key;
  if (is_empty) return {{column, data::Json()}, {"probs", data::Json()}};
  const at::Tensor scores = at::tensor(scored.scores, at::kDouble);
  const at::Tensor probabilities = has_several ? at::sigmoid(scores) : at::softmax(scores, 0);
  data::Json probs = data::Json::object(), several = data::Json::array();
  for (int64_t label = 0; label < head.num_labels; ++label) {
    probs[head.name_of(label)] = probabilities[label].item<double>();
    if (scores[label].item<double>() > 0) several.push_back(head.name_of(label));
  }
  const data::Json chosen =
      has_several ? several : data::Json(head.name_of(scores.argmax().item<int64_t>()));
  return {{column, chosen}, {"probs", probs}};
}

/// Writes what a head of scores gives.   @pre on the first rank
void write_scores(const app::ScoreRequest& request, const std::vector<ScoredRecord>& records,
                  const spec::ScoreSpec& head, const std::string& dtype, const Rank& rank) {
  std::string lines;
  int64_t num_empty = 0;
  double sum = 0;
  for (const ScoredRecord& scored : records) {
    lines += data::output_line(scored.input, additions_of(scored, head), request.output) + "\n";
    num_empty += scored.tokens.empty() ? 1 : 0;
    if (head.num_labels == 1 && !scored.tokens.empty()) sum += scored.scores[0];
  }
  data::write_records(request.output, lines);
  if (num_empty > 0)
    log::warn("{} of {} have no tokens, and so no score", num_empty,
              counted(records.size(), "record"));
  log::info("scored {} in {}", counted(records.size(), "record"), dtype);
  if (!request.json) return;
  data::Json summary = {{"records", records.size()}, {"records_without_tokens", num_empty}};
  const auto scored = static_cast<double>(std::ssize(records) - num_empty);
  if (head.num_labels == 1)
    summary["mean_score"] = scored > 0 ? data::Json(sum / scored) : data::Json();
  summary["dtype"] = dtype;
  write_result(request.ranks, rank, summary.dump(2) + "\n");
}

struct Summary {
  std::string dtype;
  int64_t records = 0, records_without_tokens = 0, tokens = 0;
  double logprob = 0;

  std::optional<double> mean_logprob() const {
    if (tokens == 0) return std::nullopt;
    return logprob / static_cast<double>(tokens);
  }
  data::Json to_json() const {
    const auto mean = mean_logprob();
    return {{"records", records},
            {"records_without_tokens", records_without_tokens},
            {"tokens", tokens},
            {"logprob", logprob},
            {"mean_logprob", mean ? data::Json(*mean) : data::Json()},
            {"perplexity", mean ? data::Json(std::exp(-*mean)) : data::Json()},
            {"dtype", dtype}};
  }
};

Summary summary_of(const std::vector<ScoredRecord>& records, const std::string& dtype) {
  Summary summary{.dtype = dtype};
  for (const ScoredRecord& scored : records) {
    ++summary.records;
    summary.records_without_tokens += scored.num_labelled == 0 ? 1 : 0;
    summary.tokens += scored.num_labelled;
    summary.logprob += scored.logprob;
  }
  return summary;
}

void report(const Summary& summary) {
  if (summary.records_without_tokens > 0) {
    log::warn(
        "no token to score (for example no assistant message, or a single token) in {} of {}: "
        "logprob is null",
        summary.records_without_tokens, counted(summary.records, "record"));
  }
  const auto mean = summary.mean_logprob();
  log::info("scored {}, {}{}", counted(summary.records, "record"), counted(summary.tokens, "token"),
            mean ? fmt::format(", mean loss {:.4f} in {}", -*mean, summary.dtype) : "");
}

int score_records(const app::ScoreRequest& request, Rank& rank) {
  if (request.teacher) return score_as_teacher(request, rank);
  if (const auto embedding =
          weights::read_embedding_files(request.model.adapter.value_or(request.model.model)))
    return embed_records(request, *embedding, rank);
  CommandRanks ranks(request.ranks, rank);
  if (const int code = ranks.connect()) return code;
  std::vector<data::InputRecord> inputs;
  const auto read = [&] {
    inputs = data::read_input_records(input_of(request.records), at::get_num_threads());
  };
  if (const int code = rank.interruptible(read)) return code;
  app::ModelRequest named = request.model;
  named.takes_images = data::have_images(inputs);
  LoadedModel model;
  if (const int code = ranks.load_model(named, model)) return code;
  if (rank.is_main()) warn_of_unread_images(inputs, model.text);
  std::vector<ScoredRecord> records;
  const auto& head = model.checkpoint->arch().score;
  const auto tokenize_all = [&] {
    records = tokenized(std::move(inputs), model.text, head ? &*head : nullptr);
  };
  if (const int code = rank.interruptible(tokenize_all)) return code;
  if (rank.is_main()) warn_of_idle_variables(request, records, model.text);
  if (const int code = score(records, model, rank)) {
    if (rank.is_main()) log::info("stopped; nothing was written");
    return code;
  }
  require_finite_scores(records, *model.checkpoint, request.model.model);
  if (!rank.is_main()) return 0;
  if (head) {
    write_scores(request, records, *head, dtype_name(model.dtype), rank);
    return 0;
  }
  data::write_records(request.output, lines_of(records, request.output));
  const Summary summary = summary_of(records, dtype_name(model.dtype));
  report(summary);
  if (request.json) write_result(request.ranks, rank, summary.to_json().dump(2) + "\n");
  return 0;
}

}  // namespace

int run_score(const app::ScoreRequest& request) {
  return run_as_ranks(request, score_records);
}

}  // namespace sftrun::engine
