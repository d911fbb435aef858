#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

/// TensorBoard event files: TFRecords (length, masked CRC32C, data, masked CRC32C) of `Event`
/// messages. Formats: tensorflow/core/lib/io/record_writer.h, tensorflow/core/util/event.proto,
/// framework/summary.proto.
namespace sftrun::observe {

/// Writes one event file, `<directory>/events.out.tfevents.<unix time>.<host>.<pid>`. Not
/// thread-safe.
class EventWriter {
 public:
  EventWriter();  ///< closed: writes nothing
  /// @param resumed_from step of the checkpoint if the run is resumed: events of later steps are
  /// removed from the directory's event files (-1: all events), and the new file begins with a
  /// SessionLog START, which makes readers drop later steps that they have read.
  /// @throws DeviceError if the file cannot be written.
  explicit EventWriter(const std::filesystem::path& directory,
                       std::optional<int64_t> resumed_from = std::nullopt);
  ~EventWriter();
  EventWriter(EventWriter&&) noexcept;
  EventWriter& operator=(EventWriter&&) noexcept;

  void scalar(std::string_view tag, double value, int64_t step);  ///< stored as fp32
  /// Markdown in TensorBoard's text tab.
  void text(std::string_view tag, std::string_view markdown, int64_t step);
  /// Hyperparameters, for the hparams tab.
  /// @param settings an object; settings of objects in it get names like "train.learning_rate". Lists
  /// become text, and null is left out
  void hparams(const nlohmann::ordered_json& settings, int64_t step);
  /// Writes the events added since the last flush, in one write.
  void flush();

  bool is_open() const { return file_ != nullptr; }

 private:
  struct File;
  std::unique_ptr<File> file_;
};

/// Rewrites every event file in `directory` without events of later steps than `step` and without
/// incomplete or corrupt tails; files that become empty are removed.
void truncate_events_to_step(const std::filesystem::path& directory, int64_t step);

}  // namespace sftrun::observe
