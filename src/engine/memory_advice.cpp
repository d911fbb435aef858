#include "memory_advice.h"

#include <c10/util/Exception.h>

#include <new>

#include "sftrun/core/error.h"

namespace sftrun::engine {

std::string memory_advice(const std::string& command) {
  if (command == "worker")
    return "lower train.batch_size and raise train.grad_accum, lower model.max_seq_len, or set "
           "train.gradient_checkpointing: true (on CUDA also train.cuda_graphs: off)";
  if (command == "generate")
    return "lower --batch-size or --max-new-tokens, shorten the prompts, or use --device cpu";
  if (command == "eval")
    return "lower --batch-size or --max-new-tokens, use --no-generate, or --device cpu";
  if (command == "score") return "shorten the longest records, or use --device cpu";
  if (command == "bench") return "lower --batch-size or --seq-len";
  return "use a machine with more memory, or end other programs that use it";
}

std::string model_memory_advice(bool trains) {
  return trains ? "the model does not fit: hold its frozen weights in 4 bits (tuning.quant: nf4, "
                  "with tuning.mode: lora), choose a smaller model, or a device with more memory"
                : "the model does not fit: choose a quantised or a smaller model, a device with "
                  "more memory, or --device cpu";
}

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

std::unique_ptr<model::Decoder> load_decoder(
    const std::shared_ptr<const weights::Checkpoint>& checkpoint,
    const model::DecoderOptions& options) {
  const auto does_not_fit = [&](const std::string& what) {
    return OutOfMemoryError(what, "loading the model",
                            model_memory_advice(options.trains != model::Trains::kNothing));
  };
  try {
    return model::Decoder::load(checkpoint, options);
  } catch (const c10::OutOfMemoryError& e) {
    throw does_not_fit(first_line(e.what_without_backtrace()));
  } catch (const std::bad_alloc&) {
    throw does_not_fit("out of memory");
  }
}

}  // namespace sftrun::engine
