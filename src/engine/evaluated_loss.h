#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "session.h"
#include "sftrun/data/dataset.h"
#include "sftrun/model/stage.h"
#include "sftrun/parallel/mesh.h"
#include "sftrun/train/objective.h"

namespace sftrun::engine {

/// Sums over the label tokens of examples.
struct LabelSums {
  double loss = 0;     ///< -log p, each times the label's weight
  double correct = 0;  ///< weights of labels that are the most likely token
  double weight = 0;   ///< of all labels
  int64_t labels = 0;
  double divergence = 0;  ///< from the teacher's distribution, weighted as the loss; 0 without one
  LabelSums& operator+=(const LabelSums& other);
};

/// Of each part of a data set, over all ranks, which divide the examples. All ranks call it.
/// @param name new for each call   @param stop_requested ends the work early; the sums are
/// incomplete then
/// @param distillation the objective with a teacher that can be had, beside the model or in the data set; null: none
std::vector<LabelSums> label_sums(const LoadedModel& model, const data::Dataset& dataset,
                                  Rank& rank, const std::string& name,
                                  const std::function<bool()>& stop_requested,
                                  const train::Objective* distillation = nullptr);

/// What an objective on documents gives of examples: on scores, or on pairs of answers.
struct ScoredSums {
  double loss = 0, terms = 0;                           ///< a sum, and the number of its terms
  std::vector<std::pair<std::string, double>> metrics;  ///< means
  std::vector<double> confusion;                        ///< train::ScoreValue::confusion
};
/// Over all ranks, of all parts. All ranks call it. A reference model is the base without its adapter.
/// @param config the objective, for the classes of this model   @param name, stop_requested as above
ScoredSums scored_sums(const LoadedModel& model, const data::Dataset& dataset,
                       const config::TrainConfig& config, Rank& rank, const std::string& name,
                       const std::function<bool()>& stop_requested);

/// Sum of log p of each example's labels [examples], on every rank. The ranks divide the examples;
/// all of them call it.   @param name new for each call   @return nullopt: a stop was requested of one
std::optional<std::vector<double>> label_logps(const model::Stage& stage,
                                               const parallel::Mesh& mesh, model::PassValues values,
                                               const data::Dataset& dataset, Rank& rank,
                                               const std::string& name);

}  // namespace sftrun::engine
