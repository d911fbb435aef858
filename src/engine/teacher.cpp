#include "teacher.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "sftrun/core/error.h"
#include "sftrun/core/plural.h"
#include "sftrun/data/teacher_scores.h"
#include "sftrun/train/identity.h"

namespace sftrun::engine {
namespace {

/// The command that scores what is missing.
std::string scoring_command(const data::TeacherDescription& teacher, const std::string& folder) {
  const std::string temperature =
      teacher.temperature == 1 ? "" : fmt::format(" --temperature {:g}", teacher.temperature);
  return fmt::format("sftrun score --config RUN.yaml --model {} --topk {}{} --dtype {} --output {}",
                     teacher.teacher, teacher.k, temperature, teacher.dtype, folder);
}

/// @throws DataError naming the first example that the teacher has not scored
void require_all_scored(const data::Dataset& dataset, const data::TeacherScores& scores,
                        const char* key) {
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
                  scoring_command(scores.description(), scores.folder().string())));
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
  if (!train.objective_info().needs_teacher) return std::nullopt;
  return data::TeacherScores(train.teacher).description().rendered_at_unix_s;
}

void attach_teacher(PreparedRun& run) {
  const config::TrainConfig& train = run.config.train;
  if (!train.objective_info().needs_teacher) return;
  const auto scores = std::make_shared<const data::TeacherScores>(train.teacher);
  data::require_temperature(scores->description(), train.kd_temperature, "train.kd_temperature");
  require_tokens_of_teacher(scores->description().tokens, *run.text,
                            run.checkpoint->arch().vocab_size, "train.teacher");
  for (auto [dataset, key] :
       {std::pair(&run.data.train, "data.train"), std::pair(&run.data.val, "data.val")}) {
    if (!*dataset) continue;
    require_all_scored(**dataset, *scores, key);
    (*dataset)->set_teacher(scores);
  }
  train::add_teacher(run.identity, fmt::format("{:016x}", scores->description().hash()));
}

}  // namespace sftrun::engine
