#include "memory_advice.h"

#include <c10/util/Exception.h>

#include <new>
#include <vector>

#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"

namespace sftrun::engine {

namespace {

/// "a, b, or c"
std::string one_of(const std::vector<std::string>& ways) {
  if (ways.size() < 2) return join(ways, "");
  const std::vector<std::string> first(ways.begin(), ways.end() - 1);
  return join(first, ", ") + (ways.size() > 2 ? "," : "") + " or " + ways.back();
}

const char* elsewhere(Memory memory) {
  return memory == Memory::kGpu ? "use --device cpu" : "use a machine with more memory";
}

std::string shorter_answers(const std::optional<int64_t>& batch_size) {
  return batch_size == 1 ? "lower --max-new-tokens" : "lower --batch-size or --max-new-tokens";
}

}  // namespace

Memory memory_of(const c10::OutOfMemoryError& error) {
  const std::string text = error.what_without_backtrace();
  return text.find("CUDA") == std::string::npos ? Memory::kHost : Memory::kGpu;
}

std::string memory_advice(const app::WorkerRequest& /*request*/, Memory memory) {
  return training_memory_advice({}, memory);
}

std::string memory_advice(const app::GenerateRequest& request, Memory memory) {
  return one_of({shorter_answers(request.batch_size), "shorten the prompts", elsewhere(memory)});
}

std::string memory_advice(const app::EvalRequest& request, Memory memory) {
  if (!request.generate) return one_of({"shorten the longest records", elsewhere(memory)});
  return one_of({shorter_answers(request.batch_size), "use --no-generate", elsewhere(memory)});
}

std::string memory_advice(const app::ScoreRequest& /*request*/, Memory memory) {
  return one_of({"shorten the longest records", elsewhere(memory)});
}

std::string memory_advice(const app::BenchRequest& request, Memory /*memory*/) {
  return request.batch_size == 1 ? "lower --seq-len" : "lower --batch-size or --seq-len";
}

std::string general_memory_advice(Memory memory) {
  return memory == Memory::kGpu
             ? "use a GPU with more memory, end other programs that use it, or use --device cpu"
             : "use a machine with more memory, or end other programs that use it";
}

std::string training_memory_advice(const config::RunConfig& config, Memory memory) {
  std::vector<std::string> ways;
  if (config.train.batch_size.value.value_or(2) > 1)
    ways.emplace_back("lower train.batch_size and raise train.grad_accum");
  ways.emplace_back("lower model.max_seq_len");
  if (config.train.gradient_checkpointing != config::Checkpointing::kLayer)
    ways.emplace_back("set train.gradient_checkpointing: true");
  if (memory == Memory::kGpu && config.train.cuda_graphs != config::CudaGraphs::kOff)
    ways.emplace_back("set train.cuda_graphs: off");
  return one_of(ways);
}

std::string model_memory_advice(const model::DecoderOptions& options, Memory memory) {
  const std::string larger =
      memory == Memory::kGpu ? "a device with more memory" : "a machine with more memory";
  std::vector<std::string> ways;
  if (options.trains == model::Trains::kNothing) {
    ways = {options.base.quant ? "a smaller model" : "a quantised or a smaller model", larger};
    if (memory == Memory::kGpu) ways.emplace_back("--device cpu");
    return "the model does not fit: choose " + one_of(ways);
  }
  if (options.trains != model::Trains::kLora)
    ways.emplace_back(
        "hold its frozen weights in 4 bits (tuning.quant: nf4, with tuning.mode: lora)");
  else if (!options.base.quant || quant_info(options.base.quant->format).bits > 4)
    ways.emplace_back("hold its frozen weights in 4 bits (tuning.quant: nf4)");
  ways.emplace_back("choose a smaller model");
  ways.push_back("use " + larger);
  return "the model does not fit: " + one_of(ways);
}

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

std::unique_ptr<model::Decoder> load_decoder(
    const std::shared_ptr<const weights::Checkpoint>& checkpoint,
    const model::DecoderOptions& options) {
  const auto does_not_fit = [&](const std::string& what, Memory memory) {
    return OutOfMemoryError(what, "loading the model", model_memory_advice(options, memory));
  };
  try {
    return model::Decoder::load(checkpoint, options);
  } catch (const c10::OutOfMemoryError& e) {
    throw does_not_fit(first_line(e.what_without_backtrace()), memory_of(e));
  } catch (const std::bad_alloc&) {
    throw does_not_fit("out of memory", Memory::kHost);
  }
}

}  // namespace sftrun::engine
