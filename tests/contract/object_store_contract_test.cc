// The contract of ObjectStore, run against the one in memory, one behind a KillingObjectStore that does not
// kill, and S3Store. For the last, tests/object/test_contract.py starts a server, and sets CKPTD_TEST_BUCKET
// and what the tools of AWS read; CKPTD_TEST_BUCKET_LACKS names what the server is known to lack.
#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/checksums/crc32c.h"
#include "storage/base/errors.h"
#include "storage/object/object_store.h"
#include "storage/object/s3_store.h"
#include "tests/testing/killing_object_store.h"
#include "tests/testing/memory_object_store.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::string Variable(const char* name) { return ProcessEnvironment()(name); }

class ObjectStoreContract : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() == "s3") {
      absl::StatusOr<std::unique_ptr<ObjectStore>> s3 =
          MakeS3Store({.bucket = Variable("CKPTD_TEST_BUCKET")});
      ASSERT_TRUE(s3.ok()) << s3.status();
      s3_ = *std::move(s3);
    }
    store_ = GetParam() == "memory" ? static_cast<ObjectStore*>(&memory_)
             : GetParam() == "s3"   ? s3_.get()
                                    : &killing_;
    // A bucket outlives the test.
    prefix_ = absl::StrCat("contract-", absl::ToUnixNanos(absl::Now()), "/");
  }

  bool Lacks(const char* ability) {
    return GetParam() == "s3" && absl::StrContains(Variable("CKPTD_TEST_BUCKET_LACKS"), ability);
  }

  std::string Key(const std::string& name) const { return prefix_ + name; }
  absl::Status Put(const std::string& name, const std::string& text, PutMode mode = PutMode::kReplace) {
    const auto bytes = std::as_bytes(std::span(text));
    return store_->Put(Key(name), bytes, Crc32c(bytes), mode);
  }
  std::string Get(const std::string& name) {
    const absl::StatusOr<ObjectInfo> info = store_->Head(Key(name));
    if (!info.ok()) return info.status().ToString();
    std::string text(static_cast<size_t>(info->size), '\0');
    const absl::Status got = store_->Get(Key(name), 0, std::as_writable_bytes(std::span(text)));
    return got.ok() ? text : got.ToString();
  }
  absl::StatusOr<UploadedPart> PutPart(const MultipartUpload& upload, int number, const std::string& text) {
    const auto bytes = std::as_bytes(std::span(text));
    return store_->PutPart(upload, number, bytes, Crc32c(bytes));
  }
  MultipartUpload Begin(const std::string& name) {
    absl::StatusOr<MultipartUpload> upload = store_->BeginUpload(Key(name));
    EXPECT_TRUE(upload.ok()) << upload.status();
    return upload.value_or(MultipartUpload{});
  }

  MemoryObjectStore memory_;
  KillingObjectStore killing_{&memory_};
  std::unique_ptr<ObjectStore> s3_;
  ObjectStore* store_ = nullptr;
  std::string prefix_;
};

TEST_P(ObjectStoreContract, GetsWhatWasPut) {
  const std::string name = "a folder/ä+b=c&d%20.pt";
  EXPECT_EQ(Put(name, "first"), absl::OkStatus());
  EXPECT_EQ(Get(name), "first");
  EXPECT_EQ(Put(name, "the second"), absl::OkStatus());
  EXPECT_EQ(Get(name), "the second");
  EXPECT_EQ(Put("empty", ""), absl::OkStatus());
  EXPECT_EQ(Get("empty"), "");
}

TEST_P(ObjectStoreContract, GetsARange) {
  ASSERT_EQ(Put("a", "0123456789"), absl::OkStatus());
  std::string text(4, '\0');
  EXPECT_EQ(store_->Get(Key("a"), 3, std::as_writable_bytes(std::span(text))), absl::OkStatus());
  EXPECT_EQ(text, "3456");
}

TEST_P(ObjectStoreContract, RefusesARangeBeyondTheEnd) {
  ASSERT_EQ(Put("a", "0123456789"), absl::OkStatus());
  std::string text(4, '\0');
  for (const int64_t offset : {8, 10, 100}) {
    const absl::Status status = store_->Get(Key("a"), offset, std::as_writable_bytes(std::span(text)));
    EXPECT_EQ(ReasonOf(status), "SHORT_OBJECT") << offset << ": " << status;
  }
}

TEST_P(ObjectStoreContract, SaysWhatIsMissing) {
  std::string text(1, '\0');
  EXPECT_EQ(ReasonOf(store_->Head(Key("none")).status()), "NO_OBJECT");
  EXPECT_EQ(ReasonOf(store_->Get(Key("none"), 0, std::as_writable_bytes(std::span(text)))), "NO_OBJECT");
  EXPECT_EQ(ReasonOf(store_->Copy(Key("none"), Key("other"))), "NO_OBJECT");
  EXPECT_EQ(store_->Delete(Key("none")), absl::OkStatus());
}

TEST_P(ObjectStoreContract, DeletesAndCopies) {
  ASSERT_EQ(Put("a b", "text"), absl::OkStatus());
  EXPECT_EQ(store_->Copy(Key("a b"), Key("c+d")), absl::OkStatus());
  EXPECT_EQ(store_->Delete(Key("a b")), absl::OkStatus());
  EXPECT_EQ(ReasonOf(store_->Head(Key("a b")).status()), "NO_OBJECT");
  EXPECT_EQ(Get("c+d"), "text");
}

TEST_P(ObjectStoreContract, ConditionalPutKeepsTheFirst) {
  if (Lacks("conditional put")) GTEST_SKIP() << "known to be lacking here";
  EXPECT_EQ(Put("a", "first", PutMode::kIfAbsent), absl::OkStatus());
  EXPECT_EQ(ReasonOf(Put("a", "second", PutMode::kIfAbsent)), "OBJECT_EXISTS");
  EXPECT_EQ(Get("a"), "first");
}

TEST_P(ObjectStoreContract, RefusesBytesOfAnotherChecksum) {
  if (Lacks("checksums")) GTEST_SKIP() << "known to be lacking here";
  const std::string text = "text";
  const auto bytes = std::as_bytes(std::span(text));
  EXPECT_EQ(ReasonOf(store_->Put(Key("a"), bytes, 1, PutMode::kReplace)), "CORRUPT_TRANSFER");
  EXPECT_EQ(ReasonOf(store_->Head(Key("a")).status()), "NO_OBJECT");
}

TEST_P(ObjectStoreContract, ListsInPages) {
  constexpr int kObjects = 1005, kThreads = 16;
  std::set<std::string> expected;
  for (int i = 0; i < kObjects; ++i) expected.insert(Key(absl::StrFormat("run/%04d", i)));
  std::vector<std::thread> threads;
  for (int first = 0; first < kThreads; ++first) {
    threads.emplace_back([this, first] {
      for (int i = first; i < kObjects; i += kThreads)
        EXPECT_EQ(Put(absl::StrFormat("run/%04d", i), "x"), absl::OkStatus());
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_EQ(Put("other", "x"), absl::OkStatus());
  std::set<std::string> found;
  std::string page;
  int pages = 0;
  do {
    const absl::StatusOr<ObjectPage> got = store_->List(Key("run/"), "", page);
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_LE(got->objects.size(), 1000u);
    for (const ObjectInfo& object : got->objects) {
      EXPECT_EQ(object.size, 1);
      EXPECT_TRUE(found.insert(object.key).second) << object.key << " twice";
    }
    page = got->next;
    ++pages;
  } while (!page.empty());
  EXPECT_EQ(pages, 2);
  EXPECT_EQ(found, expected);
}

TEST_P(ObjectStoreContract, ListsFolders) {
  for (const char* name : {"run/a/1", "run/a/2", "run/b c/1", "run/top", "run2/x"})
    ASSERT_EQ(Put(name, "x"), absl::OkStatus());
  const absl::StatusOr<ObjectPage> page = store_->List(Key("run/"), "/", "");
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_THAT(page->folders, ElementsAre(Key("run/a/"), Key("run/b c/")));
  ASSERT_THAT(page->objects, SizeIs(1));
  EXPECT_EQ(page->objects[0].key, Key("run/top"));
}

TEST_P(ObjectStoreContract, AnUploadAppearsWhenItIsComplete) {
  const std::string first(kMinPartBytes, 'a'), second = "the rest";
  const MultipartUpload upload = Begin("big file");
  const absl::StatusOr<UploadedPart> two = PutPart(upload, 2, second);
  const absl::StatusOr<UploadedPart> one = PutPart(upload, 1, first);
  ASSERT_TRUE(one.ok() && two.ok()) << one.status() << two.status();
  EXPECT_EQ(ReasonOf(store_->Head(Key("big file")).status()), "NO_OBJECT");
  EXPECT_EQ(store_->CompleteUpload(upload, {*one, *two}), absl::OkStatus());
  EXPECT_EQ(Get("big file"), first + second);
}

TEST_P(ObjectStoreContract, AnotherClientGoesOnWithAnUpload) {
  const std::string first(kMinPartBytes, 'a'), second = "the rest";
  const MultipartUpload begun = Begin("run/big");
  ASSERT_TRUE(PutPart(begun, 1, first).ok());
  const absl::StatusOr<std::vector<MultipartUpload>> uploads = store_->ListUploads(Key("run/"));
  ASSERT_TRUE(uploads.ok()) << uploads.status();
  ASSERT_THAT(*uploads, SizeIs(1));
  const MultipartUpload& upload = uploads->front();
  EXPECT_EQ(upload.key, Key("run/big"));
  absl::StatusOr<std::vector<UploadedPart>> parts = store_->ListParts(upload);
  ASSERT_TRUE(parts.ok()) << parts.status();
  ASSERT_THAT(*parts, SizeIs(1));
  EXPECT_EQ(parts->front().size, kMinPartBytes);
  const absl::StatusOr<UploadedPart> last = PutPart(upload, 2, second);
  ASSERT_TRUE(last.ok()) << last.status();
  parts->push_back(*last);
  EXPECT_EQ(store_->CompleteUpload(upload, *parts), absl::OkStatus());
  EXPECT_EQ(Get("run/big"), first + second);
}

TEST_P(ObjectStoreContract, AnAbortedUploadIsGone) {
  const MultipartUpload upload = Begin("run/big");
  ASSERT_TRUE(PutPart(upload, 1, "part").ok());
  EXPECT_EQ(store_->AbortUpload(upload), absl::OkStatus());
  EXPECT_EQ(store_->AbortUpload(upload), absl::OkStatus());
  EXPECT_THAT(store_->ListUploads(Key("run/")).value(), IsEmpty());
  if (Lacks("ended uploads")) GTEST_SKIP() << "the server fails when a part of an ended upload arrives";
  EXPECT_EQ(ReasonOf(PutPart(upload, 2, "part").status()), "NO_OBJECT");
}

std::vector<std::string> Stores() {
  if (!Variable("CKPTD_TEST_BUCKET").empty()) return {"s3"};
  return {"memory", "killing"};
}

INSTANTIATE_TEST_SUITE_P(Stores, ObjectStoreContract, ::testing::ValuesIn(Stores()),
                         [](const auto& parameter) { return parameter.param; });

TEST(MemoryObjectStoreTest, LacksWhatATestSays) {
  MemoryObjectStore store({.conditional_put = true, .checksums = true});
  const auto put = [&](const std::string& text) {
    return store.Put("a", std::as_bytes(std::span(text)), 1, PutMode::kIfAbsent);
  };
  EXPECT_EQ(put("first"), absl::OkStatus());
  EXPECT_EQ(put("second"), absl::OkStatus());
  EXPECT_EQ(store.objects()["a"], "second");
}

TEST(KillingObjectStoreTest, NothingIsDoneFromTheKillOn) {
  for (const auto when : {KillingObjectStore::When::kBefore, KillingObjectStore::When::kAfter}) {
    MemoryObjectStore memory;
    KillingObjectStore store(&memory, 2, when);
    EXPECT_EQ(store.Put("a", {}, 0, PutMode::kReplace), absl::OkStatus());
    EXPECT_TRUE(absl::IsCancelled(store.Put("b", {}, 0, PutMode::kReplace)));
    EXPECT_TRUE(absl::IsCancelled(store.Put("c", {}, 0, PutMode::kReplace)));
    EXPECT_EQ(memory.objects().size(), when == KillingObjectStore::When::kBefore ? 1 : 2);
    EXPECT_EQ(store.requests(), 3);
  }
}

}  // namespace
}  // namespace ckptd
