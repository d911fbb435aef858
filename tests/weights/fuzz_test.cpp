#include <gtest/gtest.h>

#include "file_builders.h"
#include "fuzz/fuzz_entries.h"
#include "sftrun/core/rng.h"

/// The fuzz entries over sound files with random damage; the sanitizer builds see what a plain run
/// cannot.
namespace sftrun::weights {
namespace {

using Entry = uint64_t (*)(std::span<const std::byte>);

/// A few bytes changed, sometimes cut short, mostly near the front, where the structure is.
std::string damaged(std::string bytes, size_t structure_bytes, RandomStream& random) {
  const uint64_t changes = 1 + random.next_below(4);
  for (uint64_t i = 0; i < changes; ++i) {
    const size_t position = random.next_below(std::min(bytes.size(), structure_bytes));
    static constexpr std::string_view kTelling("\0\1\x7f\x80\xff{}[]\",:9-", 15);
    bytes[position] = random.next_below(2) == 0 ? kTelling[random.next_below(kTelling.size())]
                                                : static_cast<char>(random.next_u32());
  }
  if (random.next_below(8) == 0) bytes.resize(random.next_below(bytes.size()));
  return bytes;
}

void run(Entry entry, const std::string& sound, size_t structure_bytes) {
  RandomStream random(3, 0);
  entry(test::as_bytes(sound));
  for (int i = 0; i < 5000; ++i) {
    const std::string bytes = damaged(sound, structure_bytes, random);
    EXPECT_NO_THROW(entry(test::as_bytes(bytes))) << "case " << i;
  }
}

TEST(Fuzz, Safetensors) {
  const std::string sound = test::read_file(SFTRUN_TEST_DATA "/weights/dequantised.safetensors");
  run(fuzz_safetensors, sound, 1200);
}
TEST(Fuzz, FourBits) {
  run(fuzz_safetensors, test::read_file(SFTRUN_TEST_DATA "/models/bnb-nf4/model.safetensors"),
      46620);
}
TEST(Fuzz, EightBits) {
  for (const char* form :
       {"bnb-int8", "fp8-dynamic", "fp8-blocks", "int4-gptq", "int4-compressed"}) {
    const std::string sound =
        test::read_file(std::string(SFTRUN_TEST_DATA "/models/") + form + "/model.safetensors");
    run(fuzz_safetensors, sound, 5000);
  }
}
TEST(Fuzz, Gguf) {
  run(fuzz_gguf, test::read_file(SFTRUN_TEST_DATA "/weights/blocks.gguf"), 5000);
}
TEST(Fuzz, Json) {
  run(fuzz_json, test::read_file(SFTRUN_TEST_DATA "/models/tied-gqa/config.json"), 10000);
}

}  // namespace
}  // namespace sftrun::weights
