// Writes the event files that tests/parity/tensorboard_parity.py reads with the tensorboard
// package: a run of 5 steps, then its continuation from step 3 to step 6 with other values. usage:
// write_event_files DIRECTORY
#include <cstdio>
#include <nlohmann/json.hpp>

#include "sftrun/core/error.h"
#include "sftrun/observe/tensorboard.h"

namespace {

using sftrun::observe::EventWriter;

void write_first_part(const char* directory) {
  EventWriter writer(directory);
  writer.text("config", "| key | value |\n|---|---|\n| model.name | größe 模型 |\n", 0);
  writer.hparams(
      {{"model", {{"name", "größe"}, {"revision", nullptr}}},
       {"train", {{"learning_rate", 2e-4}, {"bf16", true}, {"fp16", false}, {"stages", {1, 2}}}}},
      0);
  for (int step = 1; step <= 5; ++step) {
    writer.scalar("train/loss", 2.5 / step, step);
    writer.scalar("train/learning_rate", 1e-4 * step, step);
    writer.flush();
  }
  writer.scalar("eval/loss", 1.25, 5);
}

void write_second_part(const char* directory) {
  EventWriter writer(directory, 3);
  for (int step = 4; step <= 6; ++step) writer.scalar("train/loss", 100.0 + step, step);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    write_first_part(argv[1]);
    write_second_part(argv[1]);
  } catch (const sftrun::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
