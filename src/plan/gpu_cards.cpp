#include "sftrun/plan/gpu_cards.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"

namespace sftrun::plan {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

uint64_t gib(double size) {
  return static_cast<uint64_t>(size * kGiB);
}

/// Lower-case letters and digits; words that say nothing about the memory are left out.
std::string key_of(const std::string& name) {
  constexpr auto kLeftOut = std::to_array<std::string_view>(
      {"nvidia", "geforce", "tesla",      "gpu",         "gpus",   "sxm",     "sxm2",
       "sxm3",   "sxm4",    "sxm5",       "sxm6",        "pcie",   "hbm2",    "hbm2e",
       "hbm3",   "hbm3e",   "generation", "workstation", "server", "edition", "founders"});
  std::string key, word;
  const auto end_word = [&] {
    if (std::find(kLeftOut.begin(), kLeftOut.end(), word) == kLeftOut.end()) key += word;
    word.clear();
  };
  for (const char c : ascii_lower(name)) {
    const bool is_part = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    is_part ? word.push_back(c) : end_word();
  }
  end_word();
  return key;
}

/// "80gb" of "h10080gb" is not known without the name before it.
bool is_size(std::string_view text) {
  const size_t digits = text.find_first_not_of("0123456789");
  return digits != 0 && (text.substr(std::min(digits, text.size())) == "gb" ||
                         text.substr(std::min(digits, text.size())) == "gib");
}

std::optional<int64_t> whole(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

/// A size as "24GB", "23.5 GiB", "512MB"; nullopt: another text.
std::optional<GpuCard> card_of_size(const std::string& text) {
  const std::string lower = ascii_lower(text);
  const size_t unit = lower.find_first_not_of("0123456789. ");
  if (unit == std::string::npos || unit == 0) return std::nullopt;
  const std::string rest = lower.substr(unit);
  const bool in_mib = rest == "mb" || rest == "mib" || rest == "m";
  if (!in_mib && rest != "gb" && rest != "gib" && rest != "g") return std::nullopt;
  const std::string digits(trim(std::string_view(lower).substr(0, unit)));
  double size = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), size);
  constexpr double kLargest = 1 << 20;
  if (error != std::errc() || end != digits.data() + digits.size() || size <= 0 || size > kLargest)
    return std::nullopt;
  if (in_mib) return GpuCard{fmt::format("GPU of {:g} MiB", size), gib(size / 1024)};
  return GpuCard{fmt::format("GPU of {:g} GiB", size), gib(size)};
}

/// "4090" of "rtx4090"
std::string without_series(const std::string& key) {
  return key.starts_with("rtx") || key.starts_with("gtx") ? key.substr(3) : key;
}

std::string without(std::string text, std::string_view part) {
  if (const size_t at = text.find(part); at != std::string::npos) text.erase(at, part.size());
  return text;
}

std::optional<GpuCard> card_with_key(const std::string& key) {
  if (key.empty()) return std::nullopt;
  for (const bool may_lack_size : {false, true}) {
    for (const GpuCard& card : known_gpu_cards()) {
      const std::string whole_key = key_of(card.name);
      for (const std::string& known : {whole_key, without_series(whole_key)}) {
        if (known == key) return card;
        if (may_lack_size && known.starts_with(key) && is_size(known.substr(key.size())))
          return card;
        // A name of the driver may say a size where the table has one card only: "L40S-48GB".
        if (may_lack_size && key.starts_with(known) && is_size(key.substr(known.size())))
          return card;
      }
    }
  }
  return std::nullopt;
}

/// Of the cards that had it in their names, only the old ones are called nothing else.
constexpr std::string_view kOldSeries = "quadro";

std::optional<GpuCard> card_named(const std::string& name) {
  if (auto card = card_of_size(name)) return card;
  std::string key = key_of(name);
  if (key.ends_with("gib")) key.replace(key.size() - 3, 3, "gb");
  if (auto card = card_with_key(key)) return card;
  return card_with_key(without(key, kOldSeries));
}

/// "2x RTX 4090", "RTX 4090 x2", "H200".
struct Item {
  std::string name;
  std::optional<int64_t> count;  ///< null: a number that cannot be read
};
Item item_of(std::string_view text) {
  constexpr std::string_view kTimes = "×";
  std::string plain = ascii_lower(std::string(text));
  for (size_t at = plain.find(kTimes); at != std::string::npos; at = plain.find(kTimes))
    plain.replace(at, kTimes.size(), "x");
  std::replace(plain.begin(), plain.end(), '*', 'x');
  const size_t first = plain.find_first_not_of("0123456789");
  if (first != std::string::npos && first > 0) {
    const size_t sign = plain.find_first_not_of(' ', first);
    if (sign != std::string::npos && plain[sign] == 'x')
      return {std::string(trim(std::string_view(plain).substr(sign + 1))),
              whole(std::string_view(plain).substr(0, first))};
  }
  const size_t last = plain.find_last_not_of("0123456789");
  if (last != std::string::npos && last + 1 < plain.size()) {
    const size_t sign = plain.find_last_not_of(' ', last);
    const bool is_sign = sign != std::string::npos && sign > 0 && plain[sign] == 'x' &&
                         plain[sign - 1] == ' ';  // not the last letter of "RTX 4090"
    if (is_sign)
      return {std::string(trim(std::string_view(plain).substr(0, sign))),
              whole(std::string_view(plain).substr(last + 1))};
  }
  return {plain, 1};
}

/// Whether the name is of an AMD card: MI300X, "AMD Instinct MI250", "Radeon RX 7900".
bool is_of_amd(const std::string& key) {
  const bool is_instinct =
      key.starts_with("mi") && key.size() > 2 && key[2] >= '0' && key[2] <= '9';
  return is_instinct || key.starts_with("amd") || key.starts_with("instinct") ||
         key.starts_with("radeon") || key.starts_with("rx");
}

[[noreturn]] void refuse_card(const std::string& name, const std::string& where) {
  if (is_of_amd(key_of(name)))
    throw ConfigError(fmt::format("`{}` is an AMD GPU, which is not supported", excerpt(name)),
                      where,
                      "name NVIDIA GPUs, for example 2x H100, or plan for the CPU: --device cpu");
  std::vector<std::string> names;
  for (const GpuCard& card : known_gpu_cards())
    if (card.too_old_sm == 0) names.push_back(card.name);
  std::vector<std::string> keys;
  for (const std::string& known : names) keys.push_back(key_of(known));
  std::vector<std::string> near;
  std::vector<std::string> left = keys;
  const std::string key = key_of(name);
  constexpr size_t kShown = 3;
  while (near.size() < kShown) {
    const std::string found = nearest(key, left);
    if (found.empty()) break;
    const auto at = static_cast<size_t>(std::find(keys.begin(), keys.end(), found) - keys.begin());
    near.push_back(names[at]);
    std::erase(left, found);
  }
  throw ConfigError(
      fmt::format("unknown GPU `{}`", excerpt(name)), where,
      near.empty()
          ? fmt::format("write its memory, as in 24GB, or one of {}", join(names, ", "))
          : fmt::format("did you mean {}? Or write its memory, as in 24GB", join(near, ", ")));
}

}  // namespace

const std::vector<GpuCard>& known_gpu_cards() {
  // GiB as CUDA reports the total, with ECC where a card has it; drivers differ by about 0.1. Of
  // cards that differ in memory only, the smaller first.
  static const std::vector<GpuCard> cards = {
      {"RTX 3050 8GB", gib(7.7)},
      {"RTX 3060 8GB", gib(7.7)},
      {"RTX 3060 12GB", gib(11.6)},
      {"RTX 3060 Ti", gib(7.7)},
      {"RTX 3070", gib(7.7)},
      {"RTX 3070 Ti", gib(7.7)},
      {"RTX 3080 10GB", gib(9.6)},
      {"RTX 3080 12GB", gib(11.6)},
      {"RTX 3080 Ti", gib(11.6)},
      {"RTX 3090", gib(23.6)},
      {"RTX 3090 Ti", gib(23.6)},
      {"RTX 4060", gib(7.6)},
      {"RTX 4060 Ti 8GB", gib(7.6)},
      {"RTX 4060 Ti 16GB", gib(15.6)},
      {"RTX 4070", gib(11.6)},
      {"RTX 4070 Super", gib(11.6)},
      {"RTX 4070 Ti", gib(11.6)},
      {"RTX 4070 Ti Super", gib(15.6)},
      {"RTX 4080", gib(15.6)},
      {"RTX 4080 Super", gib(15.6)},
      {"RTX 4090", gib(23.5)},
      {"RTX 5060", gib(7.5)},
      {"RTX 5060 Ti 8GB", gib(7.5)},
      {"RTX 5060 Ti 16GB", gib(15.5)},
      {"RTX 5070", gib(11.5)},
      {"RTX 5070 Ti", gib(15.4)},
      {"RTX 5080", gib(15.4)},
      {"RTX 5090", gib(31.4)},
      {"A2", gib(14.5)},
      {"A10", gib(22.0)},
      {"A10G", gib(22.0)},
      {"A16", gib(14.5)},
      {"A30", gib(23.5)},
      {"A40", gib(44.3)},
      {"A100 40GB", gib(39.4)},
      {"A100 80GB", gib(79.1)},
      {"RTX A2000 12GB", gib(11.6)},
      {"RTX A4000", gib(15.6)},
      {"RTX A4500", gib(19.6)},
      {"RTX A5000", gib(23.5)},
      {"RTX A6000", gib(47.4)},
      {"L4", gib(22.0)},
      {"L40", gib(44.4)},
      {"L40S", gib(44.4)},
      {"RTX 2000 Ada", gib(15.6)},
      {"RTX 4000 Ada", gib(19.5)},
      {"RTX 5000 Ada", gib(31.5)},
      {"RTX 6000 Ada", gib(47.4)},
      {"RTX PRO 6000 Blackwell", gib(94.9)},
      {"RTX PRO 6000", gib(94.9)},
      {"RTX 6000 Blackwell", gib(94.9)},
      {"H20", gib(95.0)},
      {"H100 80GB", gib(79.1)},
      {"H100 NVL 94GB", gib(93.0)},
      {"H800", gib(79.1)},
      {"H200", gib(139.0)},
      {"GH200 96GB", gib(94.5)},
      {"GH200 144GB", gib(140.0)},
      {"B200", gib(178.0)},
      {"GB200", gib(184.0)},
      {"B300", gib(267.0)},
      {"T4", gib(14.6), 75},
      {"T4G", gib(14.6), 75},
      {"T10", gib(14.6), 75},
      {"V100 16GB", gib(15.8), 70},
      {"V100 32GB", gib(31.7), 70},
      {"V100S", gib(31.7), 70},
      {"V100S 32GB", gib(31.7), 70},
      {"P100 12GB", gib(11.9), 60},
      {"P100 16GB", gib(15.9), 60},
      {"P4", gib(7.4), 61},
      {"P6", gib(15.9), 61},
      {"P40", gib(23.9), 61},
      {"K40", gib(11.2), 35},
      {"K80", gib(11.2), 37},
      {"M4", gib(3.9), 52},
      {"M10", gib(7.9), 50},
      {"M40 12GB", gib(11.2), 52},
      {"M40 24GB", gib(22.4), 52},
      {"M60", gib(7.9), 52},
      {"GTX 970", gib(3.9), 52},
      {"GTX 980", gib(3.9), 52},
      {"GTX 980 Ti", gib(5.9), 52},
      {"GTX 1050", gib(1.9), 61},
      {"GTX 1050 Ti", gib(3.9), 61},
      {"GTX 1060 3GB", gib(2.9), 61},
      {"GTX 1060 6GB", gib(5.9), 61},
      {"GTX 1070", gib(7.9), 61},
      {"GTX 1070 Ti", gib(7.9), 61},
      {"GTX 1080", gib(7.9), 61},
      {"GTX 1080 Ti", gib(10.9), 61},
      {"GTX 1630", gib(3.6), 75},
      {"GTX 1650", gib(3.6), 75},
      {"GTX 1650 Super", gib(3.6), 75},
      {"GTX 1650 Ti", gib(3.6), 75},
      {"GTX 1660", gib(5.6), 75},
      {"GTX 1660 Super", gib(5.6), 75},
      {"GTX 1660 Ti", gib(5.6), 75},
      {"RTX 2060 6GB", gib(5.6), 75},
      {"RTX 2060 12GB", gib(11.6), 75},
      {"RTX 2060 Super", gib(7.6), 75},
      {"RTX 2070", gib(7.6), 75},
      {"RTX 2070 Super", gib(7.6), 75},
      {"RTX 2080", gib(7.6), 75},
      {"RTX 2080 Super", gib(7.6), 75},
      {"RTX 2080 Ti", gib(10.7), 75},
      {"Titan X", gib(11.9), 61},
      {"Titan Xp", gib(11.9), 61},
      {"Titan V", gib(11.8), 70},
      {"Titan RTX", gib(23.6), 75},
      {"T400", gib(3.6), 75},
      {"T600", gib(3.6), 75},
      {"T1000", gib(3.6), 75},
      {"Quadro P4000", gib(7.9), 61},
      {"Quadro P5000", gib(15.9), 61},
      {"Quadro P6000", gib(23.9), 61},
      {"Quadro GP100", gib(15.9), 60},
      {"Quadro GV100", gib(31.7), 70},
      {"Quadro RTX 3000", gib(5.6), 75},
      {"Quadro RTX 4000", gib(7.6), 75},
      {"Quadro RTX 5000", gib(15.7), 75},
      {"Quadro RTX 6000", gib(23.6), 75},
      {"Quadro RTX 8000", gib(47.4), 75},
  };
  return cards;
}

void require_usable(const std::vector<GpuCards>& cards, const std::string& where) {
  for (const GpuCards& some : cards) {
    if (some.card.too_old_sm == 0) continue;
    throw ConfigError(fmt::format("GPU {} (sm_{}) is too old: sm_80 (Ampere) or newer is required",
                                  some.card.name, some.card.too_old_sm),
                      where, "name other GPUs, or plan for the CPU: --device cpu");
  }
}

std::vector<GpuCards> parse_gpu_cards(const std::string& text, const std::string& where) {
  std::vector<GpuCards> all;
  for (const std::string& part : split(text, ',')) {
    const std::string_view trimmed = trim(part);
    if (trimmed.empty()) {
      throw ConfigError(fmt::format("`{}` has an empty GPU name", excerpt(text)), where,
                        "write, for example, 2x RTX4090");
    }
    const Item item = item_of(trimmed);
    constexpr int64_t kMax = 100000;
    if (!item.count || *item.count < 1 || *item.count > kMax) {
      throw ConfigError(fmt::format("`{}` has a number of GPUs that is not between 1 and {}",
                                    excerpt(std::string(trimmed)), kMax),
                        where, "write, for example, 2x RTX4090");
    }
    const std::optional<GpuCard> card = card_named(item.name);
    if (!card) refuse_card(item.name, where);
    all.push_back({*card, *item.count});
  }
  return all;
}

}  // namespace sftrun::plan
