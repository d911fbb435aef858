#include "merge_difference.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "session.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/log.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/units.h"
#include "sftrun/data/batch_plan.h"
#include "sftrun/data/dataset.h"
#include "sftrun/data/sample.h"
#include "sftrun/foreign/load.h"
#include "sftrun/images/caps_file.h"
#include "sftrun/model/adapter_io.h"
#include "sftrun/model/base_form.h"
#include "sftrun/model/stage.h"
#include "sftrun/observe/run_report.h"
#include "sftrun/observe/system.h"
#include "sftrun/plan/micro_batch.h"
#include "sftrun/tokenizer/tokenizer.h"
#include "sftrun/weights/adapter_file.h"
#include "sftrun/weights/fingerprint.h"
#include "sftrun/weights/hf_text_files.h"
#include "sftrun/weights/weights_summary.h"

namespace sftrun::engine {
namespace fs = std::filesystem;
using nlohmann::ordered_json;
namespace {

constexpr int64_t kSequences = 32;           // where nothing else is asked for
constexpr int64_t kTokensOfASequence = 256;  // on average, at most
constexpr int64_t kLabelsOfASequence = 512;  // their logits are held at once, by both models
constexpr double kNotable = 0.02;            // nats: a fiftieth of the perplexity
constexpr const char* kDtype = "fp32";       // both models are computed in
constexpr double kNoise = 0.002;             // of divergence: what the loss of few tokens says then
constexpr const char* kReport = "merge_report.json";

/// How the adapter's run held its base, and what it learnt from.
struct Training {
  config::RunConfig config;
  bool is_known = false;    ///< how the base was held: by the run around the adapter, or by itself
  bool writes_text = true;  // it has a head for tokens
  std::shared_ptr<const weights::Checkpoint> base;
  std::string base_name;
  std::string format;   ///< "nf4", "Q4_1", …; empty: not quantised
  std::string held_in;  ///< the same in words, where the adapter itself says so
  std::string data;     ///< what the sample is of
};

/// The base that the run trained on, which need not be the one that was merged into.
std::shared_ptr<const weights::Checkpoint> base_of_run(const observe::RunReport& report,
                                                       const MergedModel& model) {
  if (weights::has_fingerprint(*model.base, report.base_model_fingerprint,
                               weights::remembered_hashes()))
    return model.base;
  if (!report.base_model_path.empty() && leads_to_file(report.base_model_path))
    return weights::Checkpoint::open(report.base_model_path);
  throw DataError(fmt::format("the base that the adapter was trained on ({}) was not found",
                              report.base_model));
}

/// The same where an adapter outside its run says what it was trained on.
std::shared_ptr<const weights::Checkpoint> base_of_adapter(const config::BaseRecord& held,
                                                           const MergedModel& model) {
  if (weights::has_fingerprint(*model.base, held.fingerprint, weights::remembered_hashes()))
    return model.base;
  const auto config = weights::AdapterConfig::load(model.adapter);
  for (const std::string& name : {held.model, config.base_model_name_or_path}) {
    if (!leads_to_file(name)) continue;
    auto base = weights::Checkpoint::open(name);
    if (weights::has_fingerprint(*base, held.fingerprint, weights::remembered_hashes()))
      return base;
  }
  throw DataError(fmt::format("the base that the adapter was trained on ({} in {}) was not found",
                              held.model, held.words()));
}

/// Whether there is something to measure, or it is asked for.
bool is_needed(const Training& training, const app::MergeRequest& request) {
  return !training.format.empty() || request.sample || request.data;
}

Training training_of(const MergedModel& model, const app::MergeRequest& request) {
  Training training;
  const fs::path run = observe::run_directory_of(model.adapter);
  training.is_known = !run.empty() && leads_to_file(run / "config.resolved.yaml");
  if (training.is_known) {
    const observe::RunReport report = observe::read_run_report(run / "run.json");
    training.config = foreign::load_config(run / "config.resolved.yaml", {}).config;
    training.base = base_of_run(report, model);
    training.base_name = report.base_model;
    const config::ObjectiveInfo& objective = training.config.train.objective_info();
    training.writes_text = !objective.has_scores() && !objective.embeds();
  } else if (const auto held = config::read_base_record(model.adapter)) {
    training.is_known = true;
    training.held_in = held->words();
    training.config.tuning = held->tuning;
    training.format = held->form;
    training.base_name = held->model;
    if (is_needed(training, request)) training.base = base_of_adapter(*held, model);
  } else {
    training.base = model.base;
    training.base_name = model.base_path.string();
  }
  if (training.base)
    training.format = model::stored_base_form(training.config.tuning, *training.base);
  if (const auto& file = request.data) {
    training.config.data.val = {{.path = *file}};
    training.config.data.format = config::RecordFormat::kAuto;
    training.config.train.objective = config::TrainConfig{}.objective;  // any records with labels
  }
  return training;
}

/// Validation data where there are some.
std::vector<data::Example> sample_of(Training& training, const data::TextModel& text,
                                     int64_t count) {
  const config::RunConfig& config = training.config;
  if (!config.data.val.empty()) {
    training.data = config::names_of(config.data.val);
    return data::first_examples(config, config.data.val, /*is_validation=*/true, text, count);
  }
  training.data = config::names_of(config.data.train);
  if (config.data.val_split == 0)
    return data::first_examples(config, config.data.train, /*is_validation=*/false, text, count);
  training.data += " (its part for validation)";
  const data::Dataset all = data::load_dataset(config, config.data.train, /*is_validation=*/false,
                                               text, at::get_num_threads());
  const data::Dataset val =
      data::split_dataset(all, config.data.val_split, static_cast<uint64_t>(config.data.seed))
          .second;
  std::vector<data::Example> examples;
  for (int64_t i = 0; i < std::min(count, val.examples().size()); ++i) {
    const data::ExampleView view = val.examples()[i];
    data::Example& example = examples.emplace_back();
    for (int64_t at = 0; at < view.size(); ++at) {
      example.tokens.push_back(view.token(at));
      example.labels.push_back(view.label(at));
    }
    example.media = val.examples().media_of(i);
  }
  return examples;
}

/// Long sequences make a sample of fewer, of one at least.   @return its tokens
int64_t limit_tokens(std::vector<data::Example>& examples, int64_t most) {
  int64_t tokens = 0;
  size_t taken = 0;
  for (; taken < examples.size(); ++taken) {
    const auto more = static_cast<int64_t>(examples[taken].tokens.size());
    if (taken > 0 && tokens + more > most) break;
    tokens += more;
  }
  examples.resize(taken);
  return tokens;
}

bool sees_images(const data::Example& example) {
  return std::any_of(example.media.begin(), example.media.end(),
                     [](const data::SequenceMedia& media) { return media.is_image(); });
}

bool have_images(const std::vector<data::Example>& examples) {
  return std::any_of(examples.begin(), examples.end(), sees_images);
}

/// The image side is loaded where the sample has images.
std::unique_ptr<model::Decoder> loaded_decoder(
    const std::shared_ptr<const weights::Checkpoint>& checkpoint, model::DecoderOptions options,
    const data::TextModel& text, const std::vector<data::Example>& examples) {
  options.with_vision = have_images(examples);
  auto decoder = model::Decoder::load(checkpoint, options);
  if (options.with_vision) read_images(*decoder, text, at::get_num_threads());
  return decoder;
}

std::unique_ptr<model::Decoder> adapted_decoder(const Training& training, const fs::path& adapter,
                                                const Compute& compute, const data::TextModel& text,
                                                const std::vector<data::Example>& examples) {
  const auto config = weights::load_adapter_config(adapter, training.base->arch());
  model::DecoderOptions options;
  if (training.config.tuning.trains_adapter())
    options.base = decoder_options(training.config, compute, training.base.get()).base;
  options.dtype = compute.dtype;
  options.device = compute.device;
  options.trains = model::Trains::kLora;
  options.lora = config.lora;
  options.parts = config.lora.parts;
  if (config.lora.pissa) options.base = {};  // as PEFT takes the principal part, from the values
  auto decoder = loaded_decoder(training.base, options, text, examples);
  model::load_adapter_weights(*decoder, adapter);
  decoder->freeze_adapters();
  return decoder;
}

std::unique_ptr<model::Decoder> merged_decoder(const fs::path& written, const Compute& compute,
                                               const data::TextModel& text,
                                               const std::vector<data::Example>& examples) {
  model::DecoderOptions options;
  options.dtype = compute.dtype;
  options.device = compute.device;
  options.base.keep_stored = true;
  return loaded_decoder(weights::Checkpoint::open(written), options, text, examples);
}

/// Sums over labelled tokens.
struct Difference {
  int64_t sequences = 0, tokens = 0, label_tokens = 0;
  double loss_adapter = 0, loss_merged = 0, divergence = 0;

  /// @param adapted logits [N, vocab]   @param labels [N]
  void add(const at::Tensor& adapted, const at::Tensor& merged, const at::Tensor& labels) {
    constexpr int64_t kRows = 64;  // in fp64: two models' probabilities are close
    for (int64_t first = 0; first < labels.size(0); first += kRows) {
      const int64_t rows = std::min(kRows, labels.size(0) - first);
      const auto log_probabilities = [&](const at::Tensor& logits) {
        return at::log_softmax(logits.narrow(0, first, rows).to(at::kDouble), -1);
      };
      const at::Tensor p = log_probabilities(adapted), q = log_probabilities(merged),
                       label = labels.narrow(0, first, rows).to(at::kLong).unsqueeze(1);
      loss_adapter -= p.gather(1, label).sum().item<double>();
      loss_merged -= q.gather(1, label).sum().item<double>();
      divergence += (p.exp() * (p - q)).sum().item<double>();
    }
    label_tokens += labels.size(0);
  }
  double mean(double sum) const { return sum / static_cast<double>(label_tokens); }
};

Difference difference_of(model::Decoder& adapted, model::Decoder& merged,
                         const std::vector<data::Example>& examples) {
  Difference difference;
  const data::ExampleStore store = data::ExampleStore::in_memory(examples);
  for (int64_t i = 0; i < store.size(); ++i) {
    const data::Batch batch = data::make_batch(store, {{i}}, 0, 1);
    const auto prepared = [&](model::Decoder& decoder) {
      return model::prepare_batch(batch, decoder.rope(), decoder.batch_target(), {});
    };
    const model::PackedBatch one = prepared(adapted), other = prepared(merged);
    const int64_t count = std::min(kLabelsOfASequence, one.labels.size(0));
    const at::Tensor rows = one.label_rows.narrow(0, 0, count);
    difference.add(model::Stage(adapted).logits(one, rows),
                   model::Stage(merged).logits(other, rows), one.labels.narrow(0, 0, count));
    difference.tokens += batch.num_tokens();
    ++difference.sequences;
  }
  return difference;
}

/// Both models at once, unquantised tensors in fp32.
void require_memory(const Training& training, const weights::Checkpoint& merged,
                    const Compute& compute, const plan::TowerUse& tower) {
  if (!compute.device.is_cpu()) return;
  const auto bytes = [&](const weights::Checkpoint& base, const config::TuningConfig& tuning) {
    return plan::base_bytes(base.arch(), tuning, sizeof(float), weights::packed_bytes(base), tower);
  };
  // Both are whole: what an adapter trained in full, too.
  config::TuningConfig whole = training.config.tuning;
  whole.lora.modules_to_save.clear();
  const int64_t logits = 2 * kLabelsOfASequence * merged.arch().vocab_size * int64_t{sizeof(float)};
  const auto needed =
      static_cast<uint64_t>(bytes(*training.base, whole) + bytes(merged, {}) + logits);
  const uint64_t available = observe::memory_info().available_bytes;
  if (available == 0 || needed <= available) return;
  throw OutOfMemoryError(fmt::format("it takes {} of memory, of which {} are free",
                                     format_bytes(needed), format_bytes(available)));
}

ordered_json report_of(const MergedModel& model, const Training& training,
                       const Difference& difference) {
  return {{"data", training.data},
          {"sequences", difference.sequences},
          {"tokens", difference.tokens},
          {"label_tokens", difference.label_tokens},
          {"dtype", kDtype},
          {"trained_on", {{"model", training.base_name}, {"quant", training.format}}},
          {"merged_into", {{"model", model.base_path.string()}, {"stored", model.stored}}},
          {"loss_adapter", difference.mean(difference.loss_adapter)},
          {"loss_merged", difference.mean(difference.loss_merged)},
          {"kl_divergence", difference.mean(difference.divergence)}};
}

/// Answers part where the divergence is large, whichever way the loss of the sample went.
bool is_notable(const Difference& difference) {
  const double divergence = difference.mean(difference.divergence),
               rise = difference.mean(difference.loss_merged - difference.loss_adapter);
  return divergence >= kNotable || (divergence >= kNoise && rise >= kNotable);
}

/// Where values in fewer bits were trained on and others merged into, those; else more bits.
std::string how_to_resolve(const MergedModel& model, const Training& training) {
  if (model.as_stored && training.config.tuning.quantises_base() && !model.is_below_8_bits)
    return "merge into the values that it was trained on, without --as-stored";
  if (ascii_lower(training.format) == "fp8" && !model.is_below_8_bits)
    return "no action: FP8 products also round activations, which a dense model does not do in any "
           "precision";
  return "store the merged model in more bits, with --dtype (docs/export.md)";
}

ordered_json measure(const MergedModel& model, Training& training,
                     const app::MergeRequest& request) {
  const int64_t count = request.sample.value_or(kSequences);
  if (training.config.data.val.empty() && training.config.data.train.empty()) {
    throw DataError(
        fmt::format("the adapter is not in its run directory, so its training data are unknown{}",
                    training.held_in.empty() ? "" : "; base precision: " + training.held_in));
  }
  if (training.config.tuning.lora.init == config::LoraInit::kPissa && !training.format.empty())
    throw DataError("the PiSSA residual of the base was quantised and not saved");
  const Compute compute = choose_compute(request.device, kDtype, 0);
  data::TextModel text = full_text_model(*training.base, model.base_path,
                                         tokenizer::chat_template_in(model.adapter).value_or(""),
                                         images::read_caps(model.adapter));
  text.render_defaults.kwargs = weights::read_template_variables(model.adapter);
  std::vector<data::Example> examples = sample_of(training, text, count);
  const auto written = weights::Checkpoint::open(model.written);
  if (!written->arch().vision)
    std::erase_if(examples, sees_images);  // GGUF files are read as texts
  if (examples.empty() && text.images != nullptr)
    throw DataError(fmt::format("{} has no examples of text alone", training.data));
  if (examples.empty()) throw DataError(fmt::format("{} has no examples", training.data));
  const int64_t tokens = limit_tokens(examples, count * kTokensOfASequence);
  require_memory(training, *written, compute, {.is_loaded = have_images(examples)});
  log::info("measuring what merging changes, on {} of {} ({})",
            counted(examples.size(), "sequence"), training.data, counted(tokens, "token"));
  const auto adapted = adapted_decoder(training, model.adapter, compute, text, examples),
             merged = merged_decoder(model.written, compute, text, examples);
  const Difference difference = difference_of(*adapted, *merged, examples);
  ordered_json report = report_of(model, training, difference);
  std::string place;
  if (model.report_directory) {
    const fs::path file = *model.report_directory / kReport;
    write_file_atomically(file, report.dump(2) + "\n");
    place = "; " + file.string();
  }
  log::info(
      "loss {:.4f} of the adapter over its base{}, {:.4f} merged; KL divergence {:.2e} per token "
      "({} labelled tokens in {}{})",
      difference.mean(difference.loss_adapter),
      training.format.empty() ? "" : " in " + training.format,
      difference.mean(difference.loss_merged), difference.mean(difference.divergence),
      difference.label_tokens, kDtype, place);
  if (is_notable(difference))
    log::warn(
        "the merged model differs from base and adapter: use the adapter without merging, or {}",
        how_to_resolve(model, training));
  return report;
}

std::string with_place(const Error& error) {
  return error.where().empty() ? error.message()
                               : fmt::format("{} ({})", error.message(), error.where());
}

void warn_not_measured(const std::string& why) {
  log::warn(
      "the effect of merging was not measured: {}; --data FILE names records to use, --sample 0 "
      "skips the measurement",
      why);
}

}  // namespace

ordered_json report_difference(const MergedModel& model, const app::MergeRequest& request) {
  if (request.sample == 0) return nullptr;
  try {
    Training training = training_of(model, request);
    if (!is_needed(training, request)) {
      if (request.device != "auto")
        log::warn("--device has no effect: nothing is measured; add, for example, --sample 32");
      if (!training.is_known) {
        log::info(
            "the adapter is not in its run directory, so the base precision is unknown; the effect "
            "of merging was not measured");
      }
      return nullptr;
    }
    if (!training.writes_text) {
      log::info(
          "the effect of merging is measured of models that write text; of this one compare what "
          "`sftrun score` gives with --adapter and with the merged model");
      return nullptr;
    }
    return measure(model, training, request);
  } catch (const Error& error) {
    warn_not_measured(with_place(error));
  } catch (const c10::Error& error) {
    warn_not_measured(error.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    warn_not_measured("out of memory");
  }
  return nullptr;
}

}  // namespace sftrun::engine
