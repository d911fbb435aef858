#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "damaged_model.h"
#include "sftrun/weights/checkpoint.h"
#include "sftrun/weights/safetensors.h"
#include "support/expect_error.h"
#include "support/test_data.h"

/// Directories that bitsandbytes quantised (scripts/fixtures/make_bnb_model.py), whole and damaged.
namespace sftrun::weights {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::expect_error;
using test::read_all;

using test::kModels;
const std::string kMatrix = "model.layers.1.mlp.up_proj.weight";
const std::string kState = kMatrix + ".quant_state.bitsandbytes__nf4";

TEST(FourBits, ReadAsBitsandbytesUnpacksThem) {
  test::expect_unpacked(kModels / "bnb-nf4", "NF4");
  test::expect_unpacked(kModels / "bnb-fp4", "FP4");
}

/// The nf4 model with one thing changed.
class DamagedFourBits : public test::DamagedModel {
 protected:
  DamagedFourBits() : DamagedModel(kModels / "bnb-nf4") {}

  void set_state(const std::string& key, const json& value) {
    json state = json::parse(entries_.at(kState).bytes);
    if (value.is_discarded())
      state.erase(key);
    else
      state[key] = value;
    set(kState, "U8", state.dump());
  }
};

/// In the order of names, most of it unaligned; and stored as another type, as FSDP wants it.
TEST_F(DamagedFourBits, IsSoundUndamaged) {
  const auto sound = Checkpoint::open(kModels / "bnb-nf4");
  entries_.at(kMatrix).dtype = "BF16";
  entries_.at(kMatrix).shape = {static_cast<int64_t>(entries_.at(kMatrix).bytes.size()) / 2, 1};
  const auto copy = open();
  ASSERT_EQ(copy->tensors().size(), sound->tensors().size());
  for (const TensorInfo& info : copy->tensors())
    EXPECT_EQ(read_all(*copy, info), read_all(*sound, info)) << info.name;
}

TEST_F(DamagedFourBits, MissingParts) {
  const auto whole = entries_;
  for (const char* part : {".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map"}) {
    entries_ = whole;
    entries_.erase(kMatrix + part);
    expect_refused({"`" + kMatrix + part + "` is missing", "model.safetensors",
                    "fix: download or copy the model again"});
  }
  entries_ = whole;
  entries_.erase(kState);
  expect_refused({kMatrix});  // without its state it is a tensor of another shape
  entries_ = whole;
  entries_.erase(kMatrix);
  expect_refused({kMatrix});
}

TEST_F(DamagedFourBits, PartsOfAnotherSizeOrType) {
  const auto whole = entries_;
  const auto shorter = [&](const std::string& name) {
    entries_ = whole;
    Tensor& tensor = entries_.at(name);
    set(name, tensor.dtype, tensor.bytes.substr(0, tensor.bytes.size() - 4));
  };
  for (const char* part : {"", ".absmax", ".quant_map", ".nested_quant_map"}) {
    shorter(kMatrix + part);
    expect_refused({"`" + kMatrix + part + "` has ", " bytes, expected "});
  }
  entries_ = whole;
  set(kMatrix + ".absmax", "F32", std::string(60, '\0'));
  expect_refused({"`" + kMatrix + ".absmax` is stored as F32, expected U8"});
}

TEST_F(DamagedFourBits, ScalesThatAreNotNumbers) {
  const auto whole = entries_;
  for (const char* part : {".nested_absmax", ".quant_map", ".nested_quant_map"}) {
    for (const float value : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
      entries_ = whole;
      std::string& bytes = entries_.at(kMatrix + part).bytes;
      std::memcpy(bytes.data() + bytes.size() - 4, &value, 4);
      expect_refused({"`" + kMatrix + part + "` " + std::to_string(bytes.size() / 4 - 1) + " is "});
    }
  }
}

TEST_F(DamagedFourBits, StatesThatSaySomethingElse) {
  const auto whole = entries_;
  const json gone = json::parse("", nullptr, false);
  struct Case {
    const char* key;
    json value;
    std::string expected;
  };
  const std::vector<Case> cases = {
      {"quant_type", "int3", "`quant_type` is \"int3\", expected nf4 or fp4"},
      {"quant_type", gone, "`quant_type` is null"},
      {"quant_type", 4, "`quant_type` is 4"},
      {"blocksize", 0, "`blocksize` is 0"},
      {"blocksize", -64, "`blocksize` is -64"},
      {"blocksize", 63, "the block size 63 is odd"},
      {"blocksize", "64", "`blocksize` is \"64\""},
      {"blocksize", gone, "`blocksize` is missing"},
      {"blocksize", 1LL << 40, "`blocksize` is 1099511627776"},
      {"blocksize", 128, "bytes, expected "},
      {"shape", json::array({24, 40}), "has the shape [24,40], expected [40,24]"},
      {"shape", gone, "expected [40,24]"},
      {"nested_blocksize", 128, "`nested_blocksize` is 128, expected 256"},
      {"nested_blocksize", gone, "is stored as U8, expected F32"},
      {"nested_offset", "x", "`nested_offset` is \"x\""},
      {"nested_offset", gone, "`nested_offset` is null"},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(std::string(one.key) + " " + one.expected);
    entries_ = whole;
    set_state(one.key, one.value);
    expect_refused({kMatrix, one.expected, "model.safetensors"});
  }
  for (const char* text : {"", "{", "[]", "{\"quant_type\": \"nf4\", \"quant_type\": \"fp4\"}"}) {
    entries_ = whole;
    set(kState, "U8", text);
    expect_error([&] { open(); }, {kMatrix});
  }
}

}  // namespace
}  // namespace sftrun::weights
