#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sftrun/serve/answer_channel.h"
#include "sftrun/serve/scoring_request.h"

namespace sftrun::serve {

/// Turns the scores of a request's texts into its response.
class ScoredTexts {
 public:
  /// @param created Unix time   @param request, model must outlive this object
  ScoredTexts(const ScoringRequest& request, const ServedModel& model, std::string id,
              int64_t created);

  void add(const AnswerEvent& event);
  bool is_complete() const { return num_unfinished_ == 0; }
  /// As JSON.   @pre is_complete
  std::string whole() const;

 private:
  Json entry(size_t text) const;

  const ScoringRequest& request_;
  const ServedModel& model_;
  std::string id_;
  int64_t created_;
  std::vector<std::vector<float>> scores_;  // of each text
  size_t num_unfinished_;
};

}  // namespace sftrun::serve
