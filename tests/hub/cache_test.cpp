#include "cache.h"

#include <gtest/gtest.h>

#include "digest.h"
#include "http.h"
#include "progress.h"
#include "sftrun/core/file.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/utf8.h"
#include "sftrun/hub/hub.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"
#include "url.h"

namespace sftrun::hub {
namespace {

namespace fs = std::filesystem;
using test::TemporaryDirectory;

const std::string kCommit(40, 'c');
const RepoName kName{.id = "owner/name"};

TEST(Cache, UsesThePathsOfHuggingfaceHub) {
  const RepoCache cache("/c", kName);
  EXPECT_EQ(cache.blob("e"), "/c/models--owner--name/blobs/e");
  EXPECT_EQ(cache.incomplete("e"), "/c/models--owner--name/blobs/e.incomplete");
  EXPECT_EQ(cache.pointer(kCommit, "a/b"), "/c/models--owner--name/snapshots/" + kCommit + "/a/b");
  EXPECT_EQ(cache.lock("e"), "/c/.locks/models--owner--name/e.lock");
  EXPECT_EQ(RepoCache("/c", {RepoType::kDataset, "o/n"}).blob("e"), "/c/datasets--o--n/blobs/e");
}

TEST(Cache, RefsAndLinks) {
  const TemporaryDirectory folder;
  const RepoCache cache(folder.path(), kName);
  EXPECT_FALSE(cache.commit_of("main"));
  EXPECT_EQ(cache.commit_of(kCommit), kCommit);
  cache.make_folders(kCommit);
  cache.write_ref("refs/pr/1", kCommit);
  EXPECT_EQ(cache.commit_of("refs/pr/1"), kCommit);
  write_file_atomically(folder / "models--owner--name/refs/bad", "../../x");
  EXPECT_FALSE(cache.commit_of("bad"));

  write_file_atomically(cache.blob("e"), "text");
  cache.link(kCommit, "a/b.txt", "e");
  cache.link(kCommit, "a/b.txt", "e");  // again: another process was first
  EXPECT_EQ(fs::read_symlink(cache.pointer(kCommit, "a/b.txt")), "../../../blobs/e");
  EXPECT_EQ(read_text_file(cache.pointer(kCommit, "a/b.txt")), "text");
  EXPECT_TRUE(is_file_of(cache.pointer(kCommit, "a/b.txt"), 4));
  EXPECT_FALSE(is_file_of(cache.pointer(kCommit, "a/b.txt"), 5));
  ASSERT_EQ(cache.local_files(kCommit).size(), 1U);
  EXPECT_EQ(cache.local_files(kCommit)[0].path, "a/b.txt");
  fs::remove(cache.blob("e"));
  EXPECT_TRUE(cache.local_files(kCommit).empty());  // the link leads nowhere
}

TEST(Cache, NotesOfListings) {
  const TemporaryDirectory folder;
  const RepoCache cache(folder.path(), kName);
  EXPECT_FALSE(cache.noted_files(kCommit));
  cache.note_files(kCommit, {{"a", 1}, {"b/c", 2}});
  ASSERT_EQ(cache.noted_files(kCommit)->size(), 2U);
  EXPECT_EQ(cache.noted_files(kCommit)->at(1).path, "b/c");
  const fs::path theirs = folder / "models--owner--name/trees";
  fs::create_directories(theirs);
  write_file_atomically(theirs / (kCommit + ".json"),
                        R"({"format_version": 1, "files": {"x": {"size": 7, "blob_id": "0"}}})");
  EXPECT_EQ(cache.noted_files(kCommit)->at(0).path, "x");
  write_file_atomically(theirs / (kCommit + ".json"), R"({"files": {"../x": {"size": 7}}})");
  EXPECT_EQ(cache.noted_files(kCommit)->size(), 2U);  // ours again
}

/// A model as transformers leaves it, without a note of what the commit holds.
class CachedModel : public ::testing::Test {
 protected:
  void add(const std::string& path, const std::string& content) {
    const RepoCache cache(settings_.cache_dir, kName);
    cache.make_folders(kCommit);
    cache.write_ref("main", kCommit);
    const std::string etag = "etag-" + std::to_string(count_++);
    write_file_atomically(cache.blob(etag), content);
    cache.link(kCommit, path, etag);
  }
  Snapshot get(ModelParts parts = ModelParts::kAll) {
    return get_model(kName, parts, settings_, {.quiet = true});
  }

  TemporaryDirectory folder_;
  Settings settings_{.cache_dir = folder_.path(), .offline = "HF_HUB_OFFLINE"};
  int count_ = 0;
};

TEST_F(CachedModel, IsFoundWhenItsWeightsAreThere) {
  test::expect_error([&] { get(); }, {"not in the cache", "revision main", "HF_HUB_OFFLINE"});
  add("config.json", "{}");
  add("tokenizer.json", "{}");
  test::expect_error([&] { get(); }, {"not in the cache", "no weights"});
  EXPECT_EQ(get(ModelParts::kText).files.size(), 2U);
  add("model.safetensors", "weights");
  EXPECT_EQ(get().path, folder_ / "models--owner--name/snapshots" / kCommit);
  EXPECT_EQ(get().commit, kCommit);
}

TEST_F(CachedModel, EveryShardIsNeeded) {
  add("config.json", "{}");
  add("model.safetensors.index.json", "{}");
  add("model-00001-of-00003.safetensors", "1");
  add("model-00003-of-00003.safetensors", "3");
  test::expect_error([&] { get(); }, {"model-00002-of-00003.safetensors is missing"});
  add("model-00002-of-00003.safetensors", "2");
  EXPECT_EQ(get().files.size(), 5U);
}

TEST(Digest, ChecksumsOfContents) {
  const auto hex = [](Checksum::Kind kind, const std::string& text) {
    Digest digest(kind, text.size());
    digest.update(text.data(), text.size() / 2);
    digest.update(text.data() + text.size() / 2, text.size() - text.size() / 2);
    return digest.hex();
  };
  EXPECT_EQ(hex(Checksum::Kind::kSha256, "abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex(Checksum::Kind::kGitBlob, ""), "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
  EXPECT_EQ(hex(Checksum::Kind::kGitBlob, "hello\n"), "ce013625030ba8dba906f756967f9e9ca394464a");
  EXPECT_EQ(hex(Checksum::Kind::kNone, "abc"), "");
  EXPECT_EQ(checksum_of_etag(std::string(64, 'a')).kind, Checksum::Kind::kSha256);
  EXPECT_EQ(checksum_of_etag(std::string(40, '0')).kind, Checksum::Kind::kGitBlob);
  for (const std::string& other :
       {std::string(40, 'g'), std::string(40, 'A'), std::string(32, 'a')})
    EXPECT_EQ(checksum_of_etag(other).kind, Checksum::Kind::kNone);
}

TEST(Url, Origins) {
  EXPECT_EQ(origin_of("https://Hub.example/a?b"), "https://hub.example:443");
  EXPECT_EQ(origin_of("http://hub.example:8080/"), "http://hub.example:8080");
  EXPECT_NE(origin_of("https://hub.example/"), origin_of("http://hub.example/"));
  EXPECT_NE(origin_of("https://hub.example@evil.example/"), origin_of("https://hub.example/"));
  EXPECT_EQ(origin_of("file:///etc/passwd"), "");
  EXPECT_EQ(origin_of("not a url"), "");
}

TEST(Url, ForMessagesAndRequests) {
  EXPECT_EQ(shown_url("https://user:secret@h.example/a/b?signature=secret#x"),
            "https://h.example/a/b");
  EXPECT_EQ(shown_url("https://\xbc.storage/x"), "https://%BC.storage/x");  // found by fuzzing
  EXPECT_EQ(quoted("a b/ä?#%", true), "a%20b/%C3%A4%3F%23%25");
  EXPECT_EQ(quoted("refs/pr/1", false), "refs%2Fpr%2F1");
  EXPECT_EQ(next_link(R"(<https://h/1>; rel="prev", <https://h/2>; rel="next")"), "https://h/2");
  EXPECT_EQ(next_link(R"(<https://h/1>; rel="prev")"), "");
  EXPECT_EQ(next_link("<<<>"), "");
}

TEST(Printable, OneLineWithoutSecrets) {
  Settings settings;
  settings.token = Secret("hf_secret");
  EXPECT_EQ(printable(" a\nb\x1b[2J hf_secret \x7f", settings), "a b [2J ***");
  EXPECT_EQ(printable("hf_secrethf_secret", settings), "******");
  EXPECT_LT(printable(std::string(10000, 'x'), settings).size(), 400U);
  EXPECT_EQ(printable("\xff\xfe ok", settings), "ok");
  EXPECT_EQ(shown_url("https://hf_secret.example/x", settings), "https://***.example/x");
  std::string umlauts;
  for (int i = 0; i < 200; ++i) umlauts += "\xc3\xa4";
  EXPECT_TRUE(is_valid_utf8(printable("a" + umlauts, settings)));  // cut between characters
}

TEST(Progress, Lines) {
  EXPECT_EQ(Progress::line("o/n", 0, 1 << 20, 0, 1), "o/n: 0 B of 1.00 MiB");
  EXPECT_EQ(Progress::line("o/n", 1 << 19, 1 << 20, 1 << 18, 2),
            "o/n: 512.00 KiB of 1.00 MiB, 128.00 KiB/s, 4 s left");
}

}  // namespace
}  // namespace sftrun::hub
