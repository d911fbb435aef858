#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sftrun/serve/completion_request.h"
#include "sftrun/spec/arch_spec.h"

/// Requests to models with a head of scores, by the names and forms of vLLM's server
/// (docs.vllm.ai, "Pooling models"): /classify, /score and /pooling.
namespace sftrun::serve {

enum class ScoringTask : uint8_t {
  kClassify,  ///< a class and probabilities for each text
  kScore,     ///< one number for each pair of texts
  kPool,      ///< all scores of each text
};

/// What a task is called in addresses and responses.
struct ScoringTaskInfo {
  ScoringTask task;
  std::string_view path;  ///< also with /v1 before it
  const char* id_prefix;  ///< of the response's id
  const char* object;     ///< of an entry of its data; null: the entries have none
};
inline constexpr ScoringTaskInfo kScoringTasks[] = {
    {ScoringTask::kClassify, "/classify", "classify", nullptr},
    {ScoringTask::kScore, "/score", "score", "score"},
    {ScoringTask::kPool, "/pooling", "pool", "pooling"},
};
/// @return null: no task has this path
const ScoringTaskInfo* find_scoring_task(std::string_view path);

struct ScoringRequest {
  const ScoringTaskInfo* task = nullptr;
  bool use_activation = true;  ///< probabilities, not the scores themselves
  /// The texts as prompts without an answer.
  CompletionRequest texts;
};

/// Texts are tokenised as `sftrun score` does it; token ids are taken as they are.
/// @pre the model has a head of scores
/// @throws ApiError for parameters that are unknown, of a wrong type or not supported, for texts that
/// are empty or longer than the context, and for /score where the model has several scores
ScoringRequest parse_scoring(Json body, const ScoringTaskInfo& task, const ServedModel& model);

/// Scores as vLLM reports them, by transformers' `problem_type`: themselves for "regression", their
/// sigmoid for several labels at once and for a single score, else their softmax.
std::vector<double> activated(const std::vector<float>& scores, const spec::ScoreSpec& head);

}  // namespace sftrun::serve
