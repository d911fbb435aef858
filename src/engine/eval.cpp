#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "answer_scores.h"
#include "command_ranks.h"
#include "commands.h"
#include "evaluated_loss.h"
#include "question.h"
#include "rank.h"
#include "session.h"
#include "sftrun/config/best_metric.h"
#include "sftrun/config/teacher.h"
#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/strings.h"
#include "sftrun/data/image_input.h"
#include "sftrun/data/input_records.h"
#include "sftrun/data/sequence.h"
#include "sftrun/images/caps_file.h"
#include "sftrun/train/objective.h"
#include "sftrun/train/teacher.h"
#include "sftrun/weights/hf_text_files.h"
#include "shared_answers.h"
#include "teacher.h"
#include "text_generator.h"

namespace sftrun::engine {
namespace {

using data::Json;

/// What is measured of one model.
struct Measured {
  std::string name;                  ///< "base", "adapter", "model"
  std::vector<LabelSums> sums;       ///< of each part of the validation data
  std::map<size_t, Answer> answers;  ///< by example; on rank 0
  MeanAnswerScores scores;
  std::optional<ScoredSums> scored;  ///< of a head of scores, in place of `sums`
  std::vector<std::string> classes;

  LabelSums total() const {
    LabelSums all;
    for (const LabelSums& of_part : sums) all += of_part;
    return all;
  }
};

/// The validation data of a run, as training reads it.
data::Dataset load_validation_data(const config::RunConfig& config, const data::TextModel& text) {
  const int threads = at::get_num_threads();
  if (!config.data.val.empty())
    return data::load_dataset(config, config.data.val, /*is_validation=*/true, text, threads);
  const data::Dataset all =
      data::load_dataset(config, config.data.train, /*is_validation=*/false, text, threads);
  return data::split_dataset(all, config.data.val_split, static_cast<uint64_t>(config.data.seed))
      .second;
}

/// Whether a data set to evaluate on has images. Texts for a model that reads nothing else are not looked at.
bool evaluates_images(const config::RunConfig& config, const std::string& model) {
  if (!data::has_image_processor(model)) return false;
  const bool is_own = !config.data.val.empty();
  return data::begins_with_images(config, is_own ? config.data.val : config.data.train, is_own,
                                  std::numeric_limits<int64_t>::max());
}

/// Projectors that a run adds to its base are in its result alone.
void require_projectors(const config::RunConfig& config, const app::EvaluatedModel& model,
                        const spec::ArchSpec& arch) {
  if (config.model.projectors.empty() || !arch.projectors.empty()) return;
  throw ConfigError(
      fmt::format("the {} has no projectors: model.projectors are those of the run's result",
                  model.name == "base" ? "base model" : model.name),
      model.adapter.value_or(model.model),
      model.name == "base" ? "leave out --base and --adapter none"
                           : "evaluate what the run wrote: its adapter or model");
}

/// Evaluates the models of a request one after the other.
class Evaluation {
 public:
  Evaluation(const app::EvalRequest& request, Rank& rank)
      : request_(request),
        rank_(rank),
        ranks_(request.ranks, rank),
        config_(std::make_shared<const config::RunConfig>(request.config)) {}

  /// @return 0, or the exit code of a stop
  int run() {
    if (const int code = ranks_.connect()) return code;
    if (request_.reference)
      if (const int code = read_reference()) return code;
    for (const app::EvaluatedModel& variant : request_.models) {
      if (const int code = measure(variant)) return code;
    }
    if (rank_.is_main()) report();
    return 0;
  }

 private:
  int load(const app::EvaluatedModel& variant, LoadedModel& model) {
    return ranks_.load_model({.model = variant.model,
                              .adapter = variant.adapter,
                              .as_stored = request_.as_stored,
                              .read_as = config_,
                              .takes_images = evaluates_images(*config_, variant.model)},
                             model);
  }

  /// Gives the data the log-probabilities of the reference model, which no other model is beside.
  /// The data are read as the first model reads them.   @return 0, or the exit code of a stop
  int read_reference() {
    {
      LoadedModel first;
      if (const int code = load(request_.models.front(), first)) return code;
      if (const int code = rank_.interruptible([&] { read_data(first.text); })) return code;
    }
    LoadedModel reference;
    if (const int code = load(*request_.reference, reference)) return code;
    auto logps = label_logps(reference.stage(), reference.mesh(rank_), model::PassValues::kTrained,
                             *data_, rank_, request_.reference->name);
    if (!logps) return rank_.stop_of_any_rank();
    if (!std::ranges::all_of(*logps, [](double value) { return std::isfinite(value); })) {
      weights::require_finite(*reference.checkpoint, request_.reference->model);
      throw DataError("log-probabilities of the reference model are NaN or infinite",
                      request_.reference->model,
                      "use --dtype fp32; if that does not help, the weights are broken");
    }
    data_->set_reference_logps(std::move(*logps));
    return 0;
  }

  int measure(const app::EvaluatedModel& variant) {
    LoadedModel model;
    if (const int code = load(variant, model)) return code;
    const data::TextModel& text = model.text;
    const auto prepare = [&] {
      refuse_embedder(model);
      take_classes(variant, model.checkpoint->arch());
      require_projectors(*config_, variant, model.checkpoint->arch());
      if (rank_.is_main()) warn_of_other_reading(variant);
      if (!data_) read_data(text);
    };
    if (const int code = rank_.interruptible(prepare)) return code;
    if (const int code = find_teacher(model)) return code;
    Measured measured{.name = variant.name};
    if (measures_documents()) return measure_scores(variant, model, std::move(measured));
    const auto stops = [this] { return rank_.stop_exit_code() != 0; };
    measured.sums = label_sums(model, *data_, rank_, measured.name, stops,
                               distillation_ ? &*distillation_ : nullptr);
    if (const int code = rank_.stop_of_any_rank()) return code;
    if (!std::isfinite(measured.total().loss)) {
      weights::require_finite(*model.checkpoint, variant.model);
      throw DataError(
          fmt::format("the validation loss of the {} is NaN or infinite", measured.name),
          variant.model, "use --dtype fp32; if that does not help, the weights are broken");
    }
    if (!asked_.empty()) {
      if (const int code = generate(text, model, measured)) return code;
    }
    dtype_ = dtype_name(model.dtype);
    measured_.push_back(std::move(measured));
    return 0;
  }

  /// What the divergence of distillation is measured to: scores, which belong to the data, or a model
  /// beside those that are measured. A warning says why there is neither.
  /// @return 0, or the exit code of a stop
  int find_teacher(const LoadedModel& student) {
    const config::TrainConfig& train = config_->train;
    if (!train.objective_info().needs_teacher || has_sought_teacher_) return 0;
    has_sought_teacher_ = true;
    if (request_.teacher) return load_teacher(student);
    if (config::teacher_kind(train) != config::TeacherKind::kScores) {
      // A warning of the command says it of a model that was not found.
      if (rank_.is_main() && train.teacher.empty())
        log::warn("the divergence from the teacher is not measured: train.teacher is not set");
      return 0;
    }
    try {
      data_->set_teacher(scores_for(train, {{&*data_, "the validation data"}}, student.text,
                                    student.checkpoint->arch().vocab_size, request_.settings));
      distillation_.emplace(train);
    } catch (const Error& error) {
      if (rank_.is_main())
        log::warn("the divergence from the teacher is not measured: {} ({}); {}", error.message(),
                  error.where(), error.fix());
    }
    return 0;
  }

  int load_teacher(const LoadedModel& student) {
    const config::TrainConfig& train = config_->train;
    if (rank_.is_main() && train.teacher_quant != config::Quant::kAuto)
      log::info("the teacher is in the format of its files: train.teacher_quant is of training");
    if (const int code = load(*request_.teacher, teacher_model_)) return code;
    const int64_t num_tokens = require_teacher_of(*teacher_model_.checkpoint, student.text,
                                                  student.checkpoint->arch().vocab_size);
    teacher_.emplace(teacher_model_.stage(),
                     train::TeacherOptions{.k = std::min(train.teacher_topk, num_tokens),
                                           .num_tokens = num_tokens,
                                           .mix = {.alpha = train.kd_alpha,
                                                   .beta = train.kd_beta,
                                                   .temperature = train.kd_temperature},
                                           .is_pinned = false});
    distillation_.emplace(train, &*teacher_);
    return 0;
  }

  /// Whether texts or pairs are measured, and not label tokens one by one.
  bool measures_documents() const {
    const config::ObjectiveInfo& objective = config_->train.objective_info();
    return objective.has_scores() || objective.reads_pairs();
  }

  /// Those of the model, with which the data are read. Models that are compared have the same.
  void take_classes(const app::EvaluatedModel& variant, const spec::ArchSpec& arch) {
    const bool has_scores = config_->train.objective_info().has_scores();
    if (has_scores == arch.score.has_value()) {
      if (!has_scores || data_) return;
      auto config = std::make_shared<config::RunConfig>(*config_);
      if (config->train.objective_info().reads_classes()) {
        config->data.classes = arch.score->names;
        config->train.problem_type = arch.score->problem_type == "multi_label_classification"
                                         ? config::ProblemType::kMultiLabel
                                         : config::ProblemType::kSingleLabel;
      }
      config_ = std::move(config);
      return;
    }
    throw ConfigError(
        fmt::format("the {} has a {}, and train.objective is {}", variant.name,
                    has_scores ? "language-model head, and no scores" : "head of scores",
                    config_->train.objective_info().name),
        variant.adapter.value_or(variant.model),
        has_scores ? "evaluate what the run wrote: its adapter or model, without --base"
                   : "set train.objective to reward or classify");
  }

  int measure_scores(const app::EvaluatedModel& variant, const LoadedModel& model,
                     Measured measured) {
    const auto stops = [this] { return rank_.stop_exit_code() != 0; };
    measured.scored = scored_sums(model, *data_, config_->train, rank_, measured.name, stops);
    if (const auto& head = model.checkpoint->arch().score) measured.classes = head->names;
    if (const int code = rank_.stop_of_any_rank()) return code;
    if (!std::isfinite(measured.scored->loss)) {
      weights::require_finite(*model.checkpoint, variant.model);
      throw DataError(
          fmt::format("the validation loss of the {} is NaN or infinite", measured.name),
          variant.model, "use --dtype fp32; if that does not help, the weights are broken");
    }
    dtype_ = dtype_name(model.dtype);
    measured_.push_back(std::move(measured));
    return 0;
  }

  /// The configuration's variables and limits are used, for every model.
  void warn_of_other_reading(const app::EvaluatedModel& variant) const {
    const std::string trained = variant.adapter.value_or(variant.model);
    warn_of_other_caps(trained);
    const Json recorded = weights::read_template_variables(trained),
               used = data::template_variables(config_->data);
    if (recorded.empty() || nlohmann::json(recorded) == nlohmann::json(used)) return;
    log::warn(
        "{} was trained with chat_template_kwargs {}, and is evaluated with {}, as the "
        "configuration says (data.chat_template_kwargs, data.thinking)",
        trained, excerpt(recorded.dump()), excerpt(used.dump()));
  }

  void warn_of_other_caps(const std::string& trained) const {
    const images::ImageCaps recorded = images::read_caps(trained),
                            used = data::image_caps(config_->data);
    if (!recorded.any() || recorded == used) return;
    log::warn("{} was trained with {}, and is evaluated with {}, as the configuration says",
              trained, images::words_of(recorded),
              used.any() ? images::words_of(used) : "no such limit");
  }

  /// The first `max_records` examples that have a prompt are asked.
  void read_data(const data::TextModel& text) {
    data_ = load_validation_data(*config_, text);
    if (!request_.generate || measures_documents()) return;
    const auto most = static_cast<size_t>(request_.max_records.value_or(data_->examples().size()));
    for (int64_t i = 0; i < data_->examples().size() && asked_.size() < most; ++i) {
      auto question = question_of(data_->examples(), i, *text.tokenizer);
      if (!question) continue;
      asked_.push_back(static_cast<size_t>(i));
      questions_.emplace(static_cast<size_t>(i), std::move(*question));
    }
    if (asked_.empty() && rank_.is_main()) {
      log::warn(
          "no validation example has a prompt before its answer, so no text is generated; "
          "--no-generate avoids this warning");
    }
  }

  int generate(const data::TextModel& text, const LoadedModel& model, Measured& measured) {
    const TextGenerator generator(text, sampling_options(request_.sampling),
                                  request_.sampling.stop);
    std::map<size_t, Answer> own;
    const int code = answer_records(
        {.name = measured.name,
         .rank = rank_,
         .generator = generator,
         .decoder = *model.decoder,
         .copy = model.copy.get(),
         .batch_size = static_cast<size_t>(request_.batch_size.value_or(8)),
         .records = asked_,
         .prompt = [this](size_t example) { return questions_.at(example).prompt; },
         .on_answer = [&](size_t example,
                          Answer&& answer) { own.emplace(example, std::move(answer)); },
         .place =
             [this](size_t example) { return data_->place_of(static_cast<int64_t>(example)); }});
    if (code != 0) return code;
    measured.answers = answers_of_all_ranks(rank_.comm(), own);
    for (const auto& [example, answer] : measured.answers)
      measured.scores.add(score_answer(questions_.at(example).reference, answer.text));
    return 0;
  }

  void report() const {
    if (request_.predictions) data::write_records(*request_.predictions, prediction_lines());
    write_result(request_.ranks, rank_, request_.json ? to_json().dump(2) + "\n" : table());
  }

  std::string prediction_lines() const {
    std::string lines;
    for (const size_t example : asked_) {
      const data::StoredExample& stored = data_->examples().stored(static_cast<int64_t>(example));
      Json line = {{"place", data_->file_of(static_cast<int64_t>(example)).where(stored.number)},
                   {"reference", questions_.at(example).reference}};
      for (const Measured& of_model : measured_) {
        const Answer& answer = of_model.answers.at(example);
        const AnswerScores scores = score_answer(questions_.at(example).reference, answer.text);
        line[of_model.name] = {{"generated", answer.text},
                               {"generated_tokens", answer.num_tokens},
                               {"finish_reason", answer.finish_reason()},
                               {"rouge_l", scores.rouge_l},
                               {"exact_match", scores.exact_match == 1}};
      }
      lines += line.dump() + "\n";
    }
    return lines;
  }

  Json json_of(const LabelSums& sums) const {
    const double loss = sums.loss / sums.weight;
    Json json = {{"loss", loss},
                 {"perplexity", std::exp(loss)},
                 {"token_accuracy", sums.correct / sums.weight},
                 {"label_tokens", sums.labels}};
    if (distillation_) json["kd_loss"] = sums.divergence / sums.weight;
    return json;
  }

  /// Rows of "confusion" are classes of the data, its columns those that the model gave; with several classes a text, the counts of each class.
  static Json json_of_scores(const Measured& measured) {
    const ScoredSums& sums = *measured.scored;
    Json json = {{"loss", sums.loss / std::max(1.0, sums.terms)}};
    for (const auto& [name, value] : sums.metrics) json[name] = value;
    if (sums.confusion.empty()) return json;
    const size_t labels = measured.classes.size(), width = sums.confusion.size() / labels;
    json["classes"] = measured.classes;
    const auto count = [&](size_t row, size_t column) {
      return static_cast<int64_t>(sums.confusion[row * width + column]);
    };
    Json rows = Json::array();
    for (size_t row = 0; row < labels; ++row) {
      rows.push_back(Json::array());
      for (size_t column = 0; column < width; ++column) rows.back().push_back(count(row, column));
    }
    json["confusion"] = std::move(rows);
    return json;
  }

  /// The counts below a line with what they are of; of many classes the JSON object alone has them.
  std::string confusion_table(const Measured& measured) const {
    constexpr size_t kShown = 20;
    const Json json = json_of_scores(measured);
    if (!json.contains("confusion") || measured.classes.size() > kShown) return "";
    const bool has_several = config_->train.problem_type == config::ProblemType::kMultiLabel;
    const std::vector<std::string> columns =
        has_several ? std::vector<std::string>{"right", "missed", "wrong", "rightly not"}
                    : measured.classes;
    size_t first = 0, width = 6;
    for (const std::string& name : measured.classes) first = std::max(first, name.size());
    for (const std::string& name : columns) width = std::max(width, name.size());
    std::string text = fmt::format(
        "\n{}{}\n{:<{}}", measured.name,
        has_several ? ", texts of each class" : ", rows: class of the text, columns: of the model",
        "", first);
    for (const std::string& name : columns) text += fmt::format("  {:>{}}", name, width);
    for (size_t row = 0; row < measured.classes.size(); ++row) {
      text += fmt::format("\n{:<{}}", measured.classes[row], first);
      for (const Json& value : json["confusion"][row])
        text += fmt::format("  {:>{}}", value.get<int64_t>(), width);
    }
    return text + "\n";
  }

  Json json_of(const Measured& measured) const {
    if (measured.scored) return json_of_scores(measured);
    Json json = json_of(measured.total());
    if (!asked_.empty()) {
      const AnswerScores scores = measured.scores.mean();
      json["generated_answers"] = measured.scores.count();
      json["rouge1"] = scores.rouge1;
      json["rouge2"] = scores.rouge2;
      json["rouge_l"] = scores.rouge_l;
      json["exact_match"] = scores.exact_match;
    }
    json["sets"] = Json::array();
    const std::vector<std::string> names = set_names();
    for (size_t part = 0; part < measured.sums.size(); ++part) {
      Json set = {{"name", names[part]}};
      set.update(json_of(measured.sums[part]));
      json["sets"].push_back(set);
    }
    return json;
  }

  std::vector<std::string> set_names() const {
    std::vector<std::string> names;
    for (const data::DatasetPart& part : data_->parts()) names.push_back(part.name);
    return config::distinct_set_names(std::move(names));
  }

  Json to_json() const {
    Json json = {{"examples", data_->examples().size()}, {"dtype", dtype_}};
    for (const Measured& measured : measured_) json[measured.name] = json_of(measured);
    return json;
  }

  /// A column for each model.
  std::string table() const {
    std::vector<std::pair<std::string, std::vector<std::string>>> rows = {{"", {}}};
    const auto add = [&](const std::string& name, auto&& value_of) {
      rows.emplace_back(name, std::vector<std::string>());
      for (const Measured& measured : measured_) rows.back().second.push_back(value_of(measured));
    };
    for (const Measured& measured : measured_) rows[0].second.push_back(measured.name);
    for (const char* key : {"loss", "perplexity", "token_accuracy", "kd_loss", "rouge1", "rouge2",
                            "rouge_l", "exact_match", "accuracy", "f1_macro", "f1_micro", "margin",
                            "mean_reward", "rewards/accuracies", "rewards/margins",
                            "rewards/chosen", "rewards/rejected", "nll_loss"}) {
      if (!json_of(measured_[0]).contains(key)) continue;
      add(key, [&](const Measured& m) {
        return fmt::format("{:.4f}", json_of(m)[key].template get<double>());
      });
    }
    const std::vector<std::string> names = set_names();
    for (size_t part = 0; names.size() > 1 && part < measured_[0].sums.size(); ++part) {
      add("loss of " + names[part], [&](const Measured& m) {
        return fmt::format("{:.4f}", json_of(m.sums[part])["loss"].template get<double>());
      });
    }
    size_t width = 0;
    for (const auto& [name, values] : rows) width = std::max(width, name.size());
    std::string text;
    for (const auto& [name, values] : rows) {
      text += fmt::format("{:<{}}", name, width);
      for (const std::string& value : values) text += fmt::format("  {:>10}", value);
      text += "\n";
    }
    for (const Measured& measured : measured_)
      if (measured.scored) text += confusion_table(measured);
    return text + summary() + "\n";
  }

  std::string summary() const {
    const config::ObjectiveInfo& objective = config_->train.objective_info();
    std::string text =
        counted(data_->examples().size() / config_->train.sequences(), objective.example_word());
    if (!measures_documents()) text += ", " + counted(measured_[0].total().labels, "label token");
    if (!asked_.empty()) text += fmt::format("; {} generated", counted(asked_.size(), "answer"));
    return text + "; computed in " + dtype_;
  }

  const app::EvalRequest& request_;
  Rank& rank_;
  CommandRanks ranks_;
  std::shared_ptr<const config::RunConfig> config_;
  std::optional<data::Dataset> data_;
  std::vector<size_t> asked_;  // examples to generate an answer for
  std::map<size_t, Question> questions_;
  LoadedModel teacher_model_;
  std::optional<train::Teacher> teacher_;
  std::optional<train::Objective> distillation_;  // with a teacher that can be had
  bool has_sought_teacher_ = false;
  std::vector<Measured> measured_;
  std::string dtype_;  // that all of them computed in
};

}  // namespace

int run_eval(const app::EvalRequest& request) {
  return run_as_ranks<app::EvalRequest>(
      request, [](const auto& asked, Rank& rank) { return Evaluation(asked, rank).run(); });
}

}  // namespace sftrun::engine
