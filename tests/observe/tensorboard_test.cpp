#include "sftrun/observe/tensorboard.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "event_proto.h"
#include "sftrun/core/file.h"
#include "support/temporary_directory.h"
#include "tf_record.h"

// That TensorBoard reads these files is shown by tests/parity/tensorboard_parity.py.
namespace sftrun::observe {
namespace {

TEST(TfRecord, Crc32cKnownAnswers) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283U);            // the check value of CRC catalogues
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAU);  // RFC 3720, appendix B.4
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62A8AB43U);
}

TEST(TfRecord, ReadsBackWhatWasWritten) {
  std::string file;
  const std::vector<std::string> records{"", "a", std::string(1000, 'x')};
  for (const auto& record : records) append_tf_record(file, record);
  const auto read = read_tf_records(file);
  EXPECT_EQ(std::vector<std::string>(read.begin(), read.end()), records);
}

TEST(TfRecord, StopsAtATornOrCorruptRecord) {
  std::string file;
  append_tf_record(file, "first");
  const size_t whole = file.size();
  append_tf_record(file, "second");
  for (size_t size = whole; size < file.size(); ++size) {
    EXPECT_EQ(read_tf_records(std::string_view(file).substr(0, size)).size(), 1U) << size;
  }
  for (size_t at = whole; at < file.size(); ++at) {
    std::string corrupt = file;
    corrupt[at] = static_cast<char>(corrupt[at] ^ 1);
    EXPECT_EQ(read_tf_records(corrupt).size(), 1U) << at;
  }
}

TEST(EventProto, StepIsReadBack) {
  for (const int64_t step :
       {int64_t{0}, int64_t{1}, int64_t{127}, int64_t{128}, int64_t{1} << 40}) {
    EXPECT_EQ(event_step(encode_scalar(1.5, step, "loss", 2.0F)), step);
    EXPECT_EQ(event_step(encode_text(1.5, step, "config", std::string(300, 'y'))), step);
    EXPECT_EQ(event_step(encode_hparams(1.5, step, {{"train.epochs", 3.0}})), step);
  }
  EXPECT_EQ(event_step("\x22\x7f"), std::nullopt);  // a field longer than the message
  EXPECT_EQ(event_step("\xff"), std::nullopt);
}

std::vector<int64_t> steps_in(const std::filesystem::path& path) {
  const std::string file = read_text_file(path);
  std::vector<int64_t> steps;
  for (const auto record : read_tf_records(file)) steps.push_back(event_step(record).value());
  return steps;
}

/// In the order in which readers take them: of their names.
std::vector<std::filesystem::path> event_files(const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

TEST(EventWriter, WritesWhatIsFlushed) {
  const test::TemporaryDirectory dir;
  EventWriter writer(dir.path());
  writer.scalar("loss", 1.0, 1);
  const std::filesystem::path file = event_files(dir.path()).at(0);
  EXPECT_EQ(steps_in(file), (std::vector<int64_t>{0}));  // the version record
  writer.flush();
  EXPECT_EQ(steps_in(file), (std::vector<int64_t>{0, 1}));
}

TEST(EventWriter, ResumingCutsEarlierFilesBack) {
  const test::TemporaryDirectory dir;
  {
    EventWriter writer(dir.path());
    for (int64_t step = 1; step <= 5; ++step) writer.scalar("loss", 1.0, step);
    writer.flush();
  }
  const std::filesystem::path first = event_files(dir.path()).at(0);
  const std::string whole = read_text_file(first);
  write_file_atomically(first, whole + "torn");
  EventWriter resumed(dir.path(), 3);
  const auto files = event_files(dir.path());
  ASSERT_EQ(files.size(), 2U);
  EXPECT_EQ(files[0], first);
  EXPECT_EQ(steps_in(first), (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(steps_in(files[1]), (std::vector<int64_t>{0, 4}));  // version, SessionLog START
}

TEST(EventWriter, AClosedOneWritesNothing) {
  EventWriter closed;
  closed.scalar("loss", 1.0, 1);
  closed.flush();
  EXPECT_FALSE(closed.is_open());
}

}  // namespace
}  // namespace sftrun::observe
