#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "command_ranks.h"
#include "sftrun/core/clock.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/log.h"
#include "sftrun/core/new_directory.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/units.h"
#include "sftrun/data/batch_plan.h"
#include "sftrun/data/image_input.h"
#include "sftrun/data/teacher_scores.h"
#include "sftrun/train/resume.h"
#include "sftrun/weights/adapter_file.h"
#include "sftrun/weights/fingerprint.h"
#include "shared_passes.h"
#include "teacher.h"

namespace sftrun::engine {
namespace {

namespace fs = std::filesystem;
using data::TeacherDescription;

/// A part that is lost, because the command is killed, is scored again.
constexpr uint64_t kPartBytes = uint64_t{256} << 20;

/// Parts of this rank.
class RankParts {
 public:
  RankParts(fs::path folder, TeacherDescription description, int rank)
      : folder_(std::move(folder)), description_(std::move(description)), rank_(rank) {}

  void add(const data::ExampleKey& key, std::span<const int32_t> tokens,
           std::span<const float> log_probs) {
    if (!writer_) writer_.emplace(next_file(), description_);
    writer_->add(key, tokens, log_probs);
    num_bytes_ += tokens.size_bytes() + log_probs.size_bytes();
    if (writer_->num_bytes() >= kPartBytes) finish();
  }
  void finish() {
    if (writer_) writer_->finish();
    writer_.reset();
  }
  uint64_t num_bytes() const { return num_bytes_; }

 private:
  fs::path next_file() {
    fs::path file;
    do {
      file = folder_ / data::name_of_part(number_++, rank_);
    } while (fs::exists(file));
    return file;
  }

  fs::path folder_;
  TeacherDescription description_;
  int rank_;
  int64_t number_ = 0;
  std::optional<data::TeacherPartWriter> writer_;
  uint64_t num_bytes_ = 0;
};

/// Examples in their order, with about as many tokens as a pass needs to be fast.
std::vector<data::Bin> teacher_bins(const data::ExampleStore& examples,
                                    const std::vector<int64_t>& indices) {
  std::vector<data::Bin> bins;
  for (const auto& [first, end] : pieces_for_passes(
           indices.size(), [&](size_t i) { return int64_t{examples.stored(indices[i]).length}; }))
    bins.emplace_back(&indices[first], &indices[first] + (end - first));
  return bins;
}

/// What the command writes, and with what.
class TeacherScoring {
 public:
  TeacherScoring(const app::ScoreRequest& request, Rank& rank)
      : request_(request), asked_(*request.teacher), rank_(rank), ranks_(request_.ranks, rank) {}
  int run();

 private:
  int load();
  void claim_folder();
  int prepare_folder();
  TeacherDescription described() const;
  int score(const data::Dataset& dataset, const char* name);
  void score_bin(const model::Stage& stage, const data::Dataset& dataset, const data::Bin& bin,
                 bool writes);
  void report();

  fs::path folder() const { return request_.output; }

  const app::ScoreRequest& request_;
  const app::TeacherRequest& asked_;
  Rank& rank_;
  CommandRanks ranks_;
  std::optional<OutputLock> lock_;  // of rank 0
  data::TextModel text_;            // of the students
  train::RunData data_;
  LoadedModel model_;
  int64_t rendered_at_unix_s_ = 0;
  TeacherDescription description_;
  std::set<data::ExampleKey> known_;  // scored, or on the way
  std::optional<data::TeacherScores> earlier_;
  std::optional<RankParts> parts_;
  int64_t num_examples_ = 0, num_rows_ = 0;
};

/// Before any rank reads the folder: no other command may write it, and what is kept of an earlier one
/// must be whole, because its examples are not scored again.
/// @throws ConfigError if another command writes it; DataError naming a part that is damaged
void TeacherScoring::claim_folder() {
  std::error_code code;
  fs::path place =
      fs::weakly_canonical(absolute_path(folder()), code);  // one lock for all its names
  if (code) place = absolute_path(folder());
  make_directories(place.parent_path());
  lock_.emplace(place, "the teacher's scores");
  if (!data::TeacherScores::are_in(folder())) return;
  remove_temporaries(folder());  // of a command that was killed
  if (!asked_.overwrite) data::TeacherScores(folder()).require_whole();
}

/// The data as the students read them, and the teacher.
int TeacherScoring::load() {
  if (const int code = ranks_.connect()) return code;
  const auto claim = [&] {
    if (rank_.is_main()) claim_folder();
  };
  if (const int code = rank_.interruptible(claim)) return code;
  const auto look = [&] {
    if (asked_.overwrite || !data::TeacherScores::are_in(folder())) return;
    earlier_.emplace(folder());
  };
  if (const int code = rank_.interruptible(look)) return code;
  rendered_at_unix_s_ = train::rendering_time(
      nullptr,
      earlier_ ? earlier_->description().rendered_at_unix_s : static_cast<int64_t>(unix_seconds()),
      rank_.comm());
  const auto read = [&] {
    const auto student = weights::Checkpoint::open(asked_.student);
    text_ = full_text_model(*student, asked_.student, asked_.config.model.chat_template,
                            data::image_caps(asked_.config.data));
    text_.render_defaults.now_unix_s = rendered_at_unix_s_;
    data_ = train::load_run_data(asked_.config, text_, at::get_num_threads(), nullptr);
  };
  if (const int code = rank_.interruptible(read)) return code;
  app::ModelRequest named = request_.model;
  const auto has_images = [](const data::Dataset* dataset) {
    return dataset != nullptr && dataset->examples().media_kinds().images;
  };
  named.takes_images = has_images(data_.train_or_null()) || has_images(data_.val_or_null());
  return ranks_.load_model(named, model_);
}

TeacherDescription TeacherScoring::described() const {
  std::string print = weights::fingerprint(
      *model_.checkpoint, weights::hash_weights(*model_.checkpoint, weights::remembered_hashes()));
  if (request_.model.adapter) print += "+" + weights::adapter_hash(*request_.model.adapter);
  return {.k = asked_.topk,
          .temperature = asked_.temperature,
          .teacher = request_.model.adapter.value_or(request_.model.model),
          .fingerprint = print,
          .dtype = dtype_name(model_.dtype),
          .rendered_at_unix_s = rendered_at_unix_s_,
          .tokens = data::tokens_of(*model_.text.tokenizer)};
}

/// @throws ConfigError: the folder has scores of another teacher, or with other settings
void require_same_teacher(const TeacherDescription& earlier, const TeacherDescription& now,
                          const fs::path& folder) {
  if (earlier.hash() == now.hash()) return;
  const auto words = [](const TeacherDescription& of) {
    return fmt::format("{} with k {}, temperature {:g}, in {}", of.teacher, of.k, of.temperature,
                       of.dtype);
  };
  throw ConfigError(fmt::format("{} has scores by {}, and now they would be by {}", folder.string(),
                                words(earlier), words(now)),
                    "--output on the command line",
                    "name another folder, or add --overwrite to remove the earlier scores");
}

/// @throws ConfigError for a classifier, a reward model or one that embeds texts
void require_tokens_of_model(const LoadedModel& teacher) {
  weights::refuse_embedding_model(
      teacher.trained,
      {.where = "--model or --adapter",
       .fix = "name a language model as the teacher; sftrun score without --topk writes the "
              "embeddings of this one"});
  if (!teacher.checkpoint->arch().score) return;
  throw ConfigError("the model has a head of scores, and gives no tokens", "--model or --adapter",
                    "name a language model as the teacher; sftrun score without --topk writes the "
                    "scores or classes of this one");
}

/// The description goes last, so that a folder without one has no parts.
void remove_scores(const fs::path& folder) {
  for (const fs::path& part : data::parts_in(folder)) fs::remove(part);
  fs::remove(folder / "teacher.json");
}

/// Rank 0 describes the teacher in the folder before any rank writes a part.
int TeacherScoring::prepare_folder() {
  const auto prepare = [&] {
    require_tokens_of_model(model_);
    description_ = described();
    if (asked_.topk > std::ssize(description_.tokens))
      throw ConfigError(fmt::format("--topk {} is more than the teacher's {}", asked_.topk,
                                    counted(std::ssize(description_.tokens), "token")),
                        "--topk on the command line", "give a lower number, such as 64");
    require_tokens_of_teacher(description_.tokens, text_, model_.checkpoint->arch().vocab_size,
                              "--model on the command line");
    if (earlier_) require_same_teacher(earlier_->description(), description_, folder());
    if (!rank_.is_main() || earlier_) return;
    if (asked_.overwrite && fs::is_directory(folder())) remove_scores(folder());
    data::write_teacher(folder(), description_);
  };
  if (const int code = rank_.interruptible(prepare)) return code;
  rank_.comm().barrier("the teacher's folder");
  parts_.emplace(folder(), description_, rank_.env().rank);
  return 0;
}

/// @param bin empty: a pass for the other ranks alone
void TeacherScoring::score_bin(const model::Stage& stage, const data::Dataset& dataset,
                               const data::Bin& bin, bool writes) {
  const model::PackedBatch packed = device_batch(*model_.decoder, dataset, bin, {});
  model::MicroBatchRun run(packed);
  stage.forward(run);
  const auto targets = stage.top_tokens(run, description_.k, std::ssize(description_.tokens),
                                        description_.temperature);
  if (!targets || !writes) return;
  const at::Tensor tokens = targets->tokens.cpu(), log_probs = targets->log_probs.cpu();
  if (log_probs.isnan().any().item<bool>())
    throw DataError("the teacher's log-probabilities are NaN", dataset.place_of(bin.front()),
                    "use --dtype fp32; if that does not help, its weights are broken");
  const auto k = static_cast<size_t>(description_.k);
  const int32_t* token = tokens.const_data_ptr<int32_t>();
  const float* log_prob = log_probs.const_data_ptr<float>();
  for (const int64_t index : bin) {
    const size_t rows = dataset.examples().stored(index).label_tokens;
    parts_->add(data::key_of_example(dataset.examples(), index), {token, rows * k},
                {log_prob, rows * (k + 1)});
    token += rows * k;
    log_prob += rows * (k + 1);
  }
}

int TeacherScoring::score(const data::Dataset& dataset, const char* name) {
  const at::NoGradGuard no_grad;
  const data::ExampleStore& examples = dataset.examples();
  std::vector<int64_t> missing;
  for (int64_t i = 0; i < examples.size(); ++i) {
    const data::ExampleKey key = data::key_of_example(examples, i);
    if (!(earlier_ && earlier_->has(key)) && known_.insert(key).second) missing.push_back(i);
  }
  if (rank_.is_main())
    log::info("{}: {}, of which {} to score", name, counted(examples.size(), "example"),
              missing.size());
  const std::vector<data::Bin> bins = teacher_bins(examples, missing);
  const parallel::Mesh mesh = model_.mesh(rank_);
  const model::Stage stage = model_.stage();
  const bool writes = mesh.counts_loss_of(rank_.env().rank);
  double told = monotonic_seconds();
  const auto stop = [&] { return rank_.stop_of_any_rank(); };
  return share_passes(mesh, bins.size(), stop, [&](const SharedPass& pass) {
    rank_.comm().activity().set_work(Work::kEvaluating);
    score_bin(stage, dataset, pass.own ? bins[*pass.own] : data::Bin(), writes);
    for (size_t i = pass.first; i < pass.end; ++i) {
      num_examples_ += std::ssize(bins[i]);
      for (const int64_t index : bins[i]) num_rows_ += examples.stored(index).label_tokens;
    }
    constexpr double kEvery = 10;  // seconds
    if (rank_.is_main() && monotonic_seconds() - told > kEvery) {
      told = monotonic_seconds();
      log::info("{}: {} of {} scored", name, pass.end, counted(std::ssize(bins), "micro-batch"));
    }
  });
}

void TeacherScoring::report() {
  std::vector<double> bytes = {static_cast<double>(parts_->num_bytes())};
  double total = 0;
  for (const auto& of_rank : rank_.comm().all_gather(bytes)) total += of_rank[0];
  if (!rank_.is_main()) return;
  log::info("scored {}, {} in {}: {} written to {}", counted(num_examples_, "example"),
            counted(num_rows_, "label token"), description_.dtype,
            format_bytes(static_cast<uint64_t>(total)), folder().string());
  if (!request_.json) return;
  const nlohmann::ordered_json summary = {{"examples", num_examples_},
                                          {"tokens", num_rows_},
                                          {"k", description_.k},
                                          {"temperature", description_.temperature},
                                          {"bytes", total},
                                          {"dtype", description_.dtype}};
  write_result(request_.ranks, rank_, summary.dump(2) + "\n");
}

int TeacherScoring::run() {
  if (const int code = load()) return code;
  if (const int code = prepare_folder()) return code;
  int stopped = 0;
  for (const auto& [dataset, name] :
       {std::pair(data_.train_or_null(), "data.train"), std::pair(data_.val_or_null(), "data.val")})
    if (dataset != nullptr && stopped == 0) stopped = score(*dataset, name);
  parts_->finish();
  rank_.comm().barrier("the teacher's scores");
  if (stopped != 0) {
    if (rank_.is_main())
      log::info("stopped; what was scored is kept: rerun the same command to score the rest");
    return stopped;
  }
  report();
  return 0;
}

}  // namespace

int score_as_teacher(const app::ScoreRequest& request, Rank& rank) {
  return TeacherScoring(request, rank).run();
}

}  // namespace sftrun::engine
