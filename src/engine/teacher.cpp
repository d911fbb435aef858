#include "teacher.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "sftrun/config/teacher.h"
#include "sftrun/core/error.h"
#include "sftrun/core/hash.h"
#include "sftrun/core/log.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/units.h"
#include "sftrun/data/teacher_scores.h"
#include "sftrun/plan/quant_notes.h"
#include "sftrun/spec/trained_names.h"
#include "sftrun/train/identity.h"
#include "sftrun/weights/adapter_file.h"
#include "sftrun/weights/weights_summary.h"

namespace sftrun::engine {
namespace {

/// The command that scores what is missing.
std::string scoring_command(const std::string& settings, const data::TeacherDescription& teacher,
                            const std::string& folder) {
  const std::string temperature =
      teacher.temperature == 1 ? "" : fmt::format(" --temperature {:g}", teacher.temperature);
  return fmt::format("sftrun score --config {} --model {} --topk {}{} --dtype {} --output {}",
                     settings, shell_word(teacher.teacher), teacher.k, temperature, teacher.dtype,
                     shell_word(folder));
}

/// @throws DataError naming the first example that the teacher has not scored
void require_all_scored(const data::Dataset& dataset, const data::TeacherScores& scores,
                        const char* key, const std::string& settings) {
  const data::ExampleStore& examples = dataset.examples();
  int64_t missing = 0, first = -1;
  for (int64_t i = 0; i < examples.size(); ++i) {
    if (scores.has(data::key_of_example(examples, i))) continue;
    if (missing++ == 0) first = i;
  }
  if (missing == 0) return;
  throw DataError(
      fmt::format("the teacher has not scored {} of {} of {}; the first is here", missing,
                  counted(examples.size(), "example"), key),
      dataset.place_of(first),
      fmt::format("let it score them: {}. Examples that it has scored are not scored again",
                  scoring_command(settings, scores.description(), scores.folder().string())));
}

}  // namespace

void require_tokens_of_teacher(const std::vector<std::string>& of_teacher,
                               const data::TextModel& text, int64_t vocab_size,
                               const std::string& where) {
  const std::vector<std::string> own = data::tokens_of(*text.tokenizer);
  if (std::ssize(of_teacher) > vocab_size)
    throw ConfigError(fmt::format("the teacher's tokenizer has {}, the model embeddings for {}",
                                  counted(std::ssize(of_teacher), "token"), vocab_size),
                      where, "give a teacher and a student with the same tokenizer");
  const size_t count = std::max(own.size(), of_teacher.size());
  for (size_t id = 0; id < count; ++id) {
    const std::string mine = id < own.size() ? own[id] : "",
                      other = id < of_teacher.size() ? of_teacher[id] : "";
    if (mine == other) continue;
    // Placeholders of embeddings that no token has, which files of one of the two may list.
    const bool is_beyond_one = id >= own.size() || id >= of_teacher.size();
    if (is_beyond_one && !text.tokenizer->is_special(static_cast<tokenizer::TokenId>(id))) continue;
    throw ConfigError(fmt::format("the teacher has other tokens than the model: number {} is `{}`, "
                                  "in model.name `{}`",
                                  id, other, mine),
                      where, "give a teacher and a student with the same tokenizer");
  }
}

std::optional<int64_t> rendering_time_of_teacher(const config::TrainConfig& train) {
  if (config::teacher_kind(train) != config::TeacherKind::kScores) return std::nullopt;
  return data::TeacherScores(train.teacher).description().rendered_at_unix_s;
}

std::shared_ptr<const data::TeacherScores> scores_for(
    const config::TrainConfig& train,
    const std::vector<std::pair<const data::Dataset*, const char*>>& data,
    const data::TextModel& student, int64_t vocab_size, const std::string& settings) {
  auto scores = std::make_shared<const data::TeacherScores>(train.teacher);
  data::require_temperature(scores->description(), train.kd_temperature, "train.kd_temperature");
  require_tokens_of_teacher(scores->description().tokens, student, vocab_size, "train.teacher");
  for (const auto& [dataset, key] : data) require_all_scored(*dataset, *scores, key, settings);
  return scores;
}

void attach_teacher(PreparedRun& run, const std::string& settings) {
  const config::TrainConfig& train = run.config.train;
  if (config::teacher_kind(train) != config::TeacherKind::kScores) return;
  std::vector<std::pair<const data::Dataset*, const char*>> data;
  if (run.data.train) data.emplace_back(&*run.data.train, "data.train");
  if (run.data.val) data.emplace_back(&*run.data.val, "data.val");
  const auto scores =
      scores_for(train, data, *run.text, run.checkpoint->arch().vocab_size, settings);
  for (auto* dataset : {&run.data.train, &run.data.val})
    if (*dataset) (*dataset)->set_teacher(scores);
  train::add_teacher(run.identity, fmt::format("{:016x}", scores->description().hash()));
}

namespace {

constexpr const char* kSetting = "train.teacher";

int64_t values_of_adapter(const std::optional<std::string>& adapter, const spec::ArchSpec& arch) {
  return adapter ? spec::num_lora_values(weights::load_adapter_config(*adapter, arch).lora, arch)
                 : 0;
}

}  // namespace

int64_t require_teacher_of(const weights::Checkpoint& teacher, const data::TextModel& student,
                           int64_t vocab_size) {
  if (teacher.arch().score)
    throw ConfigError("the teacher has a head of scores, and gives no tokens", kSetting,
                      "name a language model");
  const data::TextModel text = text_model_of(teacher, "");
  require_tokens_of_teacher(data::tokens_of(*text.tokenizer), student, vocab_size, kSetting);
  const int64_t num_tokens = std::min(std::ssize(data::tokens_of(*student.tokenizer)), vocab_size);
  const int64_t num_embeddings = text.num_embeddings.value_or(teacher.arch().vocab_size);
  if (num_embeddings < num_tokens)
    throw ConfigError(fmt::format("the teacher has embeddings for only {} of the {}",
                                  num_embeddings, counted(num_tokens, "token")),
                      kSetting,
                      "give a teacher with as many, or enlarge it with resize_token_embeddings of "
                      "transformers");
  return num_tokens;
}

uint64_t LoadedTeacher::device_bytes() const {
  const parallel::StoredBytes stored = model.strategy->stored_bytes();
  return stored.frozen.value_or(model.decoder->base_bytes()) + stored.trainable + stored.gradients;
}

TeacherBeside::TeacherBeside(PreparedRun& run, const app::WorkerRequest& request)
    : run_(run), request_(request) {
  if (config::teacher_kind(run.config.train) == config::TeacherKind::kModel)
    model_.emplace(run, asked(), request.device);
}

OtherModelAsked TeacherBeside::asked() const {
  const config::TrainConfig& train = run_.config.train;
  OtherModelAsked asked{.name = train.teacher,
                        .word = "the teacher",
                        .setting = kSetting,
                        .model = request_.teacher_model,
                        .reads_as_run = true};
  if (!request_.teacher_adapter.empty()) asked.adapter = request_.teacher_adapter;
  if (train.teacher_quant != config::Quant::kAuto) asked.form = config::form_of_teacher(train);
  return asked;
}

void TeacherBeside::check(const weights::Checkpoint& teacher) {
  if (const config::TrainConfig& train = run_.config.train;
      config::form_of_teacher(train).keeps_blocks())
    plan::require_blocks(train.teacher_quant, weights::block_kinds(teacher), "train.teacher_quant");
  num_tokens_ = require_teacher_of(teacher, *run_.text, run_.checkpoint->arch().vocab_size);
  k_ = std::min(run_.config.train.teacher_topk, num_tokens_);
}

int TeacherBeside::identify(Rank& rank) {
  if (!model_) return 0;
  std::string own;
  const auto identify = [&] {
    const auto teacher = model_->open();
    check(*teacher);
    run_.teacher_use = std::make_shared<const plan::TeacherUse>(plan::TeacherUse{
        .arch = teacher->arch(),
        .stored = weights::packed_bytes(*teacher),
        .form = config::form_of_teacher(run_.config.train),
        .adapter_values = values_of_adapter(model_->asked().adapter, teacher->arch())});
    if (rank.is_main()) own = model_->identity(*teacher).dump();
  };
  if (const int code = rank.before_training(identify)) return code;
  const std::string identity = rank.comm().broadcast("teacher", own);
  train::add_teacher(run_.identity, Fingerprint().add("beside 1").add(identity).hex());
  return 0;
}

int TeacherBeside::load(Rank& rank) {
  if (!model_) return 0;
  run_.teacher = std::make_unique<LoadedTeacher>();
  LoadedModel& loaded = run_.teacher->model;
  if (const int code = model_->load(rank, loaded)) return code;
  const config::TrainConfig& train = run_.config.train;
  run_.teacher->teacher.emplace(*loaded.decoder, *loaded.strategy,
                                train::TeacherOptions{.k = k_,
                                                      .num_tokens = num_tokens_,
                                                      .mix = {.alpha = train.kd_alpha,
                                                              .beta = train.kd_beta,
                                                              .temperature = train.kd_temperature},
                                                      .is_pinned = train.dataloader_pin_memory});
  if (rank.is_main())
    log::info("teacher: {} beside the student ({}), {}", model_->asked().name,
              format_bytes(run_.teacher->device_bytes()),
              k_ == num_tokens_ ? "all tokens" : fmt::format("its {} likeliest tokens", k_));
  return 0;
}

}  // namespace sftrun::engine
