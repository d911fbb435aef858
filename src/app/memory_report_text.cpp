#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "memory_report.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/units.h"
#include "sftrun/plan/parts.h"

namespace sftrun::app {
namespace {

using Bytes = int64_t;

/// One unit for the whole report.
class MemoryUnit {
 public:
  explicit MemoryUnit(Bytes largest) : is_gib_(largest >= kGiB) {}
  std::string name() const { return is_gib_ ? "GiB" : "MiB"; }
  std::string of(Bytes bytes) const {
    const double value = static_cast<double>(bytes) / (is_gib_ ? kGiB : kMiB);
    return fmt::format("{:.{}f}", value, is_gib_ ? 2 : 1);
  }

 private:
  static constexpr Bytes kMiB = Bytes{1} << 20, kGiB = Bytes{1} << 30;
  bool is_gib_;
};

/// A share of a bar of full blocks and eighths.
std::string bar(double share) {
  constexpr double kWidth = 30;
  constexpr auto kEighths =
      std::to_array<std::string_view>({"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"});
  const auto eighths = static_cast<int64_t>(std::llround(8 * kWidth * std::clamp(share, 0.0, 1.0)));
  std::string text;
  for (int64_t i = 0; i < eighths / 8; ++i) text += "█";
  return text + std::string(kEighths[static_cast<size_t>(eighths % 8)]);
}

struct MemoryLine {
  std::string name;
  Bytes bytes = 0;
  bool is_at_peak = true;  ///< false: needed not at the peak
};

std::string base_form(const config::RunConfig& config) {
  const std::string dtype(config::dtype_name(config.model.dtype));
  if (config.tuning.keeps_blocks()) return fmt::format("as in the files, the rest {}", dtype);
  if (config.tuning.quantises_base())
    return fmt::format("{}, the rest {}", config.tuning.quant_name(), dtype);
  return dtype;
}

std::vector<MemoryLine> lines_of_plan(const MemoryReport& report) {
  const plan::MemoryPlan& plan = report.plan;
  const config::RunConfig& config = report.config;
  const bool trains_adapter = config.tuning.trains_adapter(),
             on_gpu = report.devices.place.devices.on_gpu;
  const Bytes largest = std::max({plan.step.layer, plan.step.head, plan.step.tower}),
              own = plan.step.kept + plan.step.tower_kept + largest + plan.step.images;
  const bool is_teachers = plan.step.teacher > own;  // the peak
  const std::string optimizer = config::to_json(config)["train"]["optimizer"];
  std::vector<MemoryLine> lines = {
      {fmt::format("frozen weights ({})", base_form(config)), plan.held.base},
      {trains_adapter ? fmt::format("adapters (LoRA r {})", config.tuning.lora.r)
                      : "trained weights",
       plan.held.trainable},
      {"gradients (fp32)", plan.held.gradients},
      {fmt::format("optimizer state ({})", optimizer), plan.held.optimizer},
      {"start of what trains, as reference model", plan.held.start},
      {"teacher", plan.held.teacher},
      {"gathered units", plan.held.gathered},
      {"forward pass of the teacher", plan.step.teacher, is_teachers},
      {"activations kept for the backward pass", plan.step.kept, !is_teachers},
      {"backward pass of one layer", plan.step.layer, plan.step.layer == largest && !is_teachers},
      {"head and loss", plan.step.head,
       plan.step.head == largest && plan.step.layer != largest && !is_teachers},
      {"tower and projector, kept for the backward pass", plan.step.tower_kept, !is_teachers},
      {"one layer of the tower, or the projector", plan.step.tower,
       plan.step.tower == largest && std::max(plan.step.layer, plan.step.head) != largest &&
           !is_teachers},
      {"images: patches, positions, features", plan.step.images, !is_teachers},
      {on_gpu ? "batch, unpacked matrices" : "batch", plan.step.workspace},
      {on_gpu ? "communication buffers (NCCL)" : "communication buffers", plan.communication},
      {on_gpu ? "CUDA context, cuBLAS" : "program and LibTorch", plan.context}};
  std::erase_if(lines, [](const MemoryLine& line) { return line.bytes == 0; });
  return lines;
}

std::string text_of_plan(const MemoryReport& report, const MemoryUnit& unit) {
  const auto share = [&](Bytes bytes) {
    return static_cast<double>(bytes) / static_cast<double>(report.memory_bytes());
  };
  std::string text =
      fmt::format("\n{:<50}{:>10}\n", "Peak memory of a step on one device", unit.name());
  for (const MemoryLine& line : lines_of_plan(report)) {
    const std::string value =
        line.is_at_peak ? unit.of(line.bytes) : fmt::format("({})", unit.of(line.bytes));
    text += fmt::format("  {:<48}{:>10}  {}", line.name, value,
                        line.is_at_peak ? bar(share(line.bytes)) : "not at the peak");
    text += "\n";
  }
  const plan::MemoryPlan& plan = report.plan;
  text +=
      fmt::format("  {:<48}{:>10}  {}\n", "peak", unit.of(plan.peak()), bar(share(plan.peak())));
  text += fmt::format("  {:<48}{:>10}\n", "margin for gaps between tensors", unit.of(plan.margin));
  const Bytes spare = report.memory_bytes() - plan.needed();
  text += fmt::format(
      "  {:<48}{:>10}  of {} {}: {}\n", "needed", unit.of(plan.needed()),
      unit.of(report.memory_bytes()), unit.name(),
      spare >= 0 ? fmt::format("{}, {} {} to spare",
                               report.answers_fit() ? "fits" : "a step fits, the answers do not",
                               unit.of(spare), unit.name())
                 : fmt::format("does not fit, {} {} too much", unit.of(-spare), unit.name()));
  return text;
}

std::string text_of_activations(const MemoryReport& report, const MemoryUnit& unit) {
  using enum config::Checkpointing;
  constexpr auto kSettings =
      std::to_array<config::Checkpointing>({kNone, kMlp, kAttention, kLayer});
  std::string text =
      fmt::format("\n{:<42}", fmt::format("Activations of a micro-batch, {}", unit.name()));
  for (const config::Checkpointing again : kSettings)
    text += fmt::format("{:>11}", checkpointing_word(again));
  text += "   (train.gradient_checkpointing)\n";
  std::array<Bytes, kSettings.size()> kept{}, largest{};
  const auto row = [&](const std::string& name, const std::array<Bytes, kSettings.size()>& values) {
    text += fmt::format("  {:<40}", name);
    for (const Bytes bytes : values) text += fmt::format("{:>11}", unit.of(bytes));
    text += "\n";
  };
  for (const plan::LayerKind& kind : report.kinds) {
    std::array<Bytes, kSettings.size()> values{};
    for (size_t i = 0; i < kSettings.size(); ++i) {
      const plan::LayerBytes& bytes = kind.bytes.at(kSettings[i]);
      values[i] = bytes.kept;
      kept[i] += bytes.kept;
      largest[i] = std::max(largest[i], bytes.in_backward);
    }
    row(fmt::format("{}: {}", counted(kind.layers, "layer"), kind.name), values);
  }
  row("backward pass of one layer", largest);
  for (size_t i = 0; i < kSettings.size(); ++i) kept[i] += largest[i];
  row("together", kept);
  if (report.devices.place.devices.on_gpu) {
    const plan::MicroBatchShape shape =
        plan::micro_batch_shape(report.config, report.devices.place.devices);
    const Bytes inputs = shape.tokens * report.arch.hidden_size * shape.element_bytes;
    constexpr int64_t kInputsUnderWay = 3;
    text += fmt::format(
        "  true, with parallel.offload.activations: cpu {:>6}\n",
        unit.of(largest.back() + inputs * std::min(kInputsUnderWay, report.arch.num_layers)));
  }
  return text;
}

std::string text_of_strategies(const MemoryReport& report, const MemoryUnit& unit) {
  if (report.strategies.size() < 2) return {};
  constexpr auto kHead = std::to_array<std::string_view>(
      {"weights", "gradients", "optimizer", "gathered", "step", "other", "needed"});
  std::string text = fmt::format("\n{:<24}", fmt::format("By parallel.strategy, {}", unit.name()));
  for (const std::string_view head : kHead) text += fmt::format("{:>11}", head);
  text += "\n";
  for (const StrategyRow& row : report.strategies) {
    const std::string name =
        fmt::format("{}{}", row.choice.sizes.name(), row.choice.is_own ? " (this run)" : "");
    text += fmt::format("  {:<22}", name);
    if (!row.plan) {
      text += fmt::format("   no: {}\n", row.choice.refusal);
      continue;
    }
    const plan::MemoryPlan& plan = *row.plan;
    for (const Bytes bytes :
         {plan.held.base + plan.held.trainable + plan.held.start + plan.held.teacher,
          plan.held.gradients, plan.held.optimizer, plan.held.gathered, plan.step.peak(),
          plan.communication + plan.context + plan.margin, plan.needed()})
      text += fmt::format("{:>11}", unit.of(bytes));
    const Bytes over = plan.needed() - report.memory_bytes();
    text += over <= 0 ? "  fits\n" : fmt::format("  {} too much\n", unit.of(over));
  }
  return text;
}

/// Where small data shorten the sequences of the run.
std::string text_of_shorter_sequences(const MemoryReport& report) {
  if (report.largest_batch_size_of_data == report.largest_batch_size) return {};
  const int64_t batch = *report.config.train.batch_size.value;
  const int64_t tokens =
      plan::micro_batch_shape(report.config, report.devices.place.devices).tokens;
  return fmt::format(
      "Both with sequences of full length. Those of this run have at most {}: with them "
      "train.batch_size can be {}.\n",
      counted((tokens + batch - 1) / batch, "token"), report.largest_batch_size_of_data);
}

std::string text_of_largest(const MemoryReport& report) {
  const config::RunConfig& config = report.config;
  const int64_t batch = *config.train.batch_size.value;
  const auto or_none = [](int64_t largest) {
    return largest > 0 ? fmt::format("{}", largest) : std::string("none fits");
  };
  return fmt::format(
             "\nLargest train.batch_size with model.max_seq_len {}: {}\n"
             "Largest model.max_seq_len with train.batch_size {}: {}{}\n",
             config.model.max_seq_len, or_none(report.largest_batch_size), batch,
             or_none(report.longest.useful),
             report.longest.model_limits()
                 ? fmt::format(", the model's positions (memory has room for {})",
                               report.longest.fitting)
                 : "") +
         text_of_shorter_sequences(report);
}

std::string text_of_answers(const MemoryReport& report, const MemoryUnit& unit) {
  if (!report.answers) return {};
  const plan::AnswersMemory& answers = *report.answers;
  const bool has_rollouts = report.config.train.writes_answers();
  std::string text = fmt::format(
      "\nAnswers of {} ({}), {} of up to {} tokens at a time: at "
      "most {} {},\n  {} {} with what stays on the device",
      has_rollouts ? "training" : "evaluations", answers.setting, answers.rows, answers.tokens,
      unit.of(answers.total()), unit.name(), unit.of(answers.peak()), unit.name());
  if (!report.answers_fit()) {
    text += fmt::format(
        ", {} {} too much.\n  Lower {}", unit.of(answers.peak() - report.memory_bytes()),
        unit.name(),
        has_rollouts ? "train.rollouts.batch_size or train.rollouts.max_new_tokens"
                     : "train.generation_batch_size or train.generation_max_new_tokens, or measure "
                       "checkpoints with `sftrun eval`");
  }
  return text + ".\n";
}

std::string text_of_change(const MemoryReport& report, const MemoryUnit& unit) {
  if (report.fits()) return {};
  if (!report.change) {
    return "\nNo change of this run makes it fit: use more devices or devices with more memory, or "
           "a smaller model.\n";
  }
  const auto& changes = report.change->changes;
  std::string text = fmt::format("\nThe cheapest change that fits ({} {}):\n",
                                 unit.of(report.change->plan.needed()), unit.name());
  for (const plan::MemoryChange& change : changes)
    text += fmt::format("  {}\n    {}\n", join(change.settings, " "), change.cost);
  return text;
}

std::string text_of_error(const MemoryReport& report) {
  const bool on_gpu = report.devices.place.devices.on_gpu;
  return fmt::format(
      "\nMargin of error: tensors {:.0f}%{}, {} {}. docs/memory.md explains the terms.\n",
      100 * kTensorError,
      on_gpu ? " (by runs on a CPU, with LibTorch's allocator for GPUs and on an H100)" : "",
      on_gpu ? "CUDA context and communication (assumed)" : "the program's own memory",
      format_bytes(static_cast<uint64_t>(process_error_bytes(on_gpu))));
}

/// The tower, and what it reads in a micro-batch.
std::string text_of_images(const MemoryReport& report) {
  uint64_t parameters = 0;
  for (const spec::TensorSpec& tensor : plan::tower_tensors(report.arch))
    parameters += static_cast<uint64_t>(tensor.numel());
  const plan::ImageShape shape =
      plan::micro_batch_shape(report.config, report.devices.place.devices).images;
  const std::string images = report.images
                                 ? fmt::format("{} of {} x {} pixels in each packed sequence,",
                                               counted(report.images->of_sequence, "image"),
                                               report.images->width, report.images->height)
                                 : report.images_of_data + ";";
  return fmt::format("tower and projector: {}, {} parameters; {} {} of a micro-batch\n",
                     counted(report.arch.vision->num_used_layers, "layer"),
                     format_count(parameters), images, counted(shape.patches, "patch"));
}

std::string text_of_run(const MemoryReport& report) {
  const config::RunConfig& config = report.config;
  const plan::RunDevices& devices = report.devices.place.devices;
  const auto settings = config::to_json(config);
  const bool has_images = report.images || !report.images_of_data.empty();
  const auto use = plan::TowerUse::of(config.tuning, report.arch, has_images);
  uint64_t parameters = 0;
  for (const spec::TensorSpec& tensor :
       plan::with_tower(spec::tensor_specs(report.arch), report.arch, use))
    parameters += static_cast<uint64_t>(tensor.numel());
  std::string text =
      fmt::format("{}: {}, {} parameters\n", report.arch.family,
                  counted(report.arch.num_layers, "layer"), format_count(parameters));
  const std::string parts = plan::describe_parts(
      report.arch, config, use, plan::part_trained(report.arch, config.tuning, use));
  if (!parts.empty()) text += parts + "\n";
  text += fmt::format(
      "{}, {} for each process{}; {}; strategy {}\n", report.devices.text,
      format_bytes(devices.memory_bytes), report.devices.are_here ? "" : " (not on this machine)",
      counted(devices.world_size, "process"), plan::own_sizes(config.parallel).name());
  if (has_images) text += text_of_images(report);
  return text + fmt::format("{}, {}; micro-batches of {} tokens, train.grad_accum {}\n",
                            settings["tuning"]["mode"].get<std::string>(),
                            settings["train"]["optimizer"].get<std::string>(),
                            plan::micro_batch_shape(config, devices).tokens,
                            *config.train.grad_accum.value);
}

}  // namespace

std::string as_text(const MemoryReport& report) {
  const MemoryUnit unit(report.plan.peak());
  std::string text = text_of_run(report);
  for (const std::string& note : report.notes) text += fmt::format("note: {}\n", note);
  return text + text_of_plan(report, unit) + text_of_activations(report, unit) +
         text_of_strategies(report, unit) + text_of_answers(report, unit) +
         text_of_largest(report) + text_of_change(report, unit) + text_of_error(report);
}

}  // namespace sftrun::app
