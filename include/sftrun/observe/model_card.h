#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "sftrun/observe/run_summary.h"

/// README.md of a trained model, a model card of the Hugging Face hub: YAML metadata between two
/// lines of dashes, then Markdown (huggingface.co/docs/hub/model-cards).
namespace sftrun::observe {

/// The evaluation for which the weights were kept.
struct KeptWeights {
  int64_t step = 0;
  std::string metric;  ///< "eval_rouge_l"
  double value = 0;
};

struct ModelCard {
  std::string base_model;               ///< as configured: owner/name on the hub, or a path
  bool is_on_hub = false;               ///< whether `base_model` is a name on the hub
  bool is_adapter = true;               ///< in PEFT's layout; else a full model
  bool is_quantised = false;            ///< the base was quantised during training
  bool reads_images = false;            ///< the run loaded the model's image side
  bool has_scores = false;              ///< a head of scores; labels.json is beside an adapter
  bool embeds = false;                  ///< sentence-transformers loads it
  bool leaves_template_unused = false;  ///< data::leaves_template_unused: prompts are raw text
  std::string quantize_command;   ///< writes the base as the run quantised it; empty: none does
  std::string quantised_base;     ///< the folder that it writes; empty: none
  std::string objective = "sft";  ///< a tag
  std::string version;            ///< of sftrun
  std::vector<std::string> data;  ///< names of data sets and files
  std::vector<std::pair<std::string, std::string>> settings;  ///< (name, value), in this order
  RunSummary summary;
  std::optional<KeptWeights> kept;  ///< null: the weights are those of the last step
};

std::string to_markdown(const ModelCard& card);

}  // namespace sftrun::observe
