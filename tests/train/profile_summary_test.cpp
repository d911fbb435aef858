#include "../../src/train/profile_summary.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

namespace sftrun::train {
namespace {

constexpr int64_t kMs = 1'000'000;

ProfileEvent host(const char* name, int64_t begin_ms, int64_t end_ms, uint64_t thread = 1) {
  return {name, thread, begin_ms * kMs, end_ms * kMs, false};
}

/// "calls seconds share" of the row of a name, in the table with a title.
std::string row(const std::string& text, const std::string& title, const std::string& name) {
  std::istringstream lines(text.substr(text.find("\n" + title)));
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(name + "  ")) continue;
    std::istringstream words(line.substr(name.size()));
    std::string calls, seconds, share;
    words >> calls >> seconds >> share;
    return calls + " " + seconds + " " + share;
  }
  return "none";
}

TEST(ProfileSummary, TimeIsOfTheInnermost) {
  std::vector<ProfileEvent> events = {
      host("step 3", 0, 100),   host("data loader", 0, 10), host("forward", 10, 40),
      host("layer 0", 10, 30),  host("aten::mm", 12, 20),   host("aten::mm", 20, 25),
      host("layer 1", 30, 40),  host("backward", 40, 80),   host("wait: all-reduce", 50, 70),
      host("step 4", 100, 200), host("forward", 110, 120),  host("elsewhere", 0, 200, 2),
      host("before", -50, -10),
  };
  std::reverse(events.begin(), events.end());
  const std::string text = profile_summary(events, 1);
  EXPECT_EQ(text.substr(0, text.find('\n')), "2 steps of rank 1, 0.1000 seconds each");
  EXPECT_EQ(row(text, "part", "forward"), "2 0.0400 20.0%");
  EXPECT_EQ(row(text, "part", "backward"), "1 0.0200 10.0%");
  EXPECT_EQ(row(text, "part", "wait: all-reduce"), "1 0.0200 10.0%");
  EXPECT_EQ(row(text, "part", "step"), "2 0.1100 55.0%");  // between the parts
  EXPECT_EQ(row(text, "operation", "aten::mm"), "2 0.0130 6.5%");
  EXPECT_EQ(row(text, "operation", "layer"), "2 0.0170 8.5%");
  EXPECT_EQ(text.find("elsewhere"), std::string::npos);
  EXPECT_EQ(text.find("before"), std::string::npos);
  EXPECT_EQ(text.find("GPU"), std::string::npos);
}

TEST(ProfileSummary, KernelsMayOverlap) {
  std::vector<ProfileEvent> events = {host("step 1", 0, 100)};
  for (const auto& [begin, end] : {std::pair{10, 40}, {30, 50}, {60, 70}})
    events.push_back({"gemm", 7, begin * kMs, end * kMs, true});
  const std::string text = profile_summary(events, 0);
  EXPECT_NE(text.find("The GPU is busy 50.0% of the time."), std::string::npos) << text;
  EXPECT_EQ(row(text, "kernel or copy", "gemm"), "3 0.0600 60.0%");
}

TEST(ProfileSummary, KernelsHaveShortNames) {
  std::vector<ProfileEvent> events = {host("step 1", 0, 100)};
  const auto add = [&](const char* name, int64_t begin, int64_t end) {
    events.push_back({name, 7, begin * kMs, end * kMs, true});
  };
  add("void sftrun::kernels::cuda::(anonymous namespace)::gated_forward<__nv_bfloat16, 8>(int)", 0,
      10);
  add("void sftrun::kernels::cuda::(anonymous namespace)::decide_update(float*)", 10, 20);
  add("void at::native::(anonymous namespace)::fill<at::native::Fill<float> >(int, float)", 20, 30);
  add("Memcpy HtoD (Pageable -> Device)", 40, 50);
  add("Memcpy HtoD (Pinned -> Device)", 50, 60);
  const std::string text = profile_summary(events, 0);
  EXPECT_EQ(row(text, "kernel", "gated_forward<__nv_bfloat16, 8>"), "1 0.0100 10.0%") << text;
  EXPECT_EQ(row(text, "kernel", "decide_update"), "1 0.0100 10.0%") << text;
  EXPECT_EQ(row(text, "kernel", "fill<Fill<float> >"), "1 0.0100 10.0%") << text;
  EXPECT_EQ(row(text, "kernel", "Memcpy HtoD (Pageable -> Device)"), "1 0.0100 10.0%") << text;
  EXPECT_EQ(row(text, "kernel", "Memcpy HtoD (Pinned -> Device)"), "1 0.0100 10.0%") << text;
}

TEST(ProfileSummary, SaysThatThereIsNothing) {
  EXPECT_EQ(profile_summary({host("forward", 0, 1)}, 2), "No step of rank 2 was profiled.\n");
}

}  // namespace
}  // namespace sftrun::train
