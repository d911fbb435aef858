#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "sftrun/config/run_config.h"
#include "sftrun/data/batch_plan.h"
#include "sftrun/data/dataset.h"
#include "sftrun/data/deal.h"
#include "sftrun/model/decoder.h"
#include "sftrun/observe/metrics.h"
#include "sftrun/parallel/communicator.h"
#include "sftrun/parallel/strategy.h"
#include "sftrun/train/micro_batch_schedule.h"
#include "sftrun/train/objective.h"

namespace sftrun::train {

struct EvalResult {
  int stop_exit_code = 0;  ///< not 0: the run was asked to stop meanwhile; there is no result
  double loss = 0;         ///< mean over the objective's terms of the validation set
  double seconds = 0;
  double num_terms = 0;          ///< of the objective; of label tokens the sum of their weights
  int64_t num_labels = 0;        ///< label tokens, whatever their weights
  observe::NamedValues metrics;  ///< means that the objective reports
  observe::NamedValues losses;   ///< of each set by its name, if there are several
  /// ScoreValue::confusion of all sets, row after row; empty: the objective counts none.
  std::vector<double> confusion;
};

/// What generating answers for the validation prompts gave.
struct AnswerEvaluation {
  int stop_exit_code = 0;  ///< not 0: the run was asked to stop meanwhile; the rest is incomplete
  std::optional<observe::AnswerMetrics> scores;  ///< nullopt: not generated, or not compared
  observe::NamedValues rewards;                  ///< of answers that rewards judge
  double seconds = 0;                            ///< also if it was given up
  int64_t num_answers = 0;                       ///< that have rewards
  std::string samples;                           ///< some answers as Markdown; on rank 0
};

/// Loss on the validation sets, divided over the data-parallel ranks; the same on any number of them to rounding.
class Evaluator {
 public:
  /// @param cost by which micro-batches are dealt to the ranks; empty: in order
  Evaluator(const config::RunConfig& config, const data::Dataset& val, data::BinCost cost = {});
  /// All ranks run as many micro-batches, of which the last ones may be empty.
  /// @param stop_exit_code of a stop that this rank was asked for; 0: none. All ranks end between
  /// the same micro-batches if any of them was
  EvalResult run(model::Decoder& decoder, parallel::Strategy& strategy, const Objective& objective,
                 parallel::Communicator& comm, const std::function<int()>& stop_exit_code);
  /// Examples whose images or features `run` could not read, with data.bad_records: skip.
  const std::set<int64_t>& lost() const { return lost_; }
  /// Names of the sets, if there are several.
  std::vector<std::string> set_names() const;

 private:
  struct Set {
    std::string name;
    data::BatchPlan plan;
  };
  StepSums sums_of(const std::vector<data::Bin>& bins, model::Decoder& decoder,
                   const model::Stage& stage, const parallel::Mesh& mesh,
                   const Objective& objective, parallel::Communicator& comm,
                   const std::function<bool()>& goes_on) const;

  /// Adds the sums of bins whose texts are told from each other, as those of a global batch.
  void add_embedded(const std::vector<data::Bin>& bins, const model::Stage& stage,
                    const parallel::Mesh& mesh, const Objective& objective,
                    parallel::Communicator& comm, StepSums& sums) const;

  const data::Dataset& val_;
  data::BinCost cost_;
  std::vector<Set> sets_;
  int64_t micro_batch_size_, max_seq_len_;
  int64_t retrieval_size_;  // bins whose texts are told from each other: a global batch of training
  bool is_pinned_, counts_correct_;
  config::BadRecords bad_records_;
  std::set<int64_t> lost_;  // examples whose images or features cannot be read
};

}  // namespace sftrun::train
