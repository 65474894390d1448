#include "client/sdk/arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "client/sdk/objects.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

template <typename Options>
const internal::ArgumentsData Passed(const Options& options) {
  const internal::Arguments arguments = internal::ToArguments(options);
  return internal::Access::Of(arguments);
}

// Each field differs from its default, and from the others.
TEST(ArgumentsTest, OptionsOfARunArriveAsTheProgramSetsThem) {
  const RunOptions options = {
      .rank = 1,
      .world_size = 4,
      .local_ranks = {1, 3},
      .launch_id = "launch",
      .job = "job",
      .run_id = "run",
      .attempt = 7,
      .retention = Keep{.last = 5,
                        .best = 2,
                        .metric = "loss",
                        .highest = true,
                        .every = 100,
                        .newer_than = seconds(60)},
      .upload =
          Upload{
              .url = "s3://b/p", .every = 3, .keep_last = 9, .evict_before_upload = true, .restore = false},
      .share_unchanged = true,
      .commit_timeout = seconds(11),
      .copy_threads = 6,
  };
  const auto run = internal::ToRunOptions(Passed(options));
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->rank, 1);
  EXPECT_EQ(run->world_size, 4);
  EXPECT_THAT(run->local_ranks, ElementsAre(1, 3));
  EXPECT_EQ(run->launch_id + run->job + run->run_id, "launchjobrun");
  EXPECT_EQ(run->attempt, 7);
  ASSERT_TRUE(run->retention.has_value());
  EXPECT_EQ(run->retention->last, 5);
  EXPECT_EQ(run->retention->best, 2);
  EXPECT_EQ(run->retention->metric, "loss");
  EXPECT_TRUE(run->retention->highest);
  EXPECT_EQ(run->retention->every, 100);
  EXPECT_EQ(run->retention->newer_than, seconds(60));
  ASSERT_TRUE(run->upload.has_value());
  EXPECT_EQ(run->upload->url, "s3://b/p");
  EXPECT_EQ(run->upload->every, 3);
  EXPECT_EQ(run->upload->keep_last, 9);
  EXPECT_TRUE(run->upload->evict_before_upload);
  EXPECT_FALSE(run->upload->restore);
  EXPECT_TRUE(run->share_unchanged);
  EXPECT_EQ(run->commit_timeout, seconds(11));
  EXPECT_EQ(run->copy_threads, 6);
}

TEST(ArgumentsTest, WhatTheProgramLeavesUnsetStaysUnset) {
  const auto run = internal::ToRunOptions(Passed(RunOptions()));
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_FALSE(run->retention.has_value());
  EXPECT_FALSE(run->upload.has_value());
  const auto save = internal::ToSaveOptions(Passed(SaveOptions()));
  ASSERT_TRUE(save.ok()) << save.status();
  EXPECT_FALSE(save->step.has_value());
}

TEST(ArgumentsTest, DefaultsAreThoseOfTheClient) {
  const auto run = internal::ToRunOptions(Passed(RunOptions()));
  const auto save = internal::ToSaveOptions(Passed(SaveOptions()));
  const auto connection = internal::ToClientOptions(Passed(ClientOptions()));
  ASSERT_TRUE(run.ok() && save.ok() && connection.ok());
  EXPECT_EQ(run->world_size, client::RunOptions().world_size);
  EXPECT_EQ(run->commit_timeout, client::RunOptions().commit_timeout);
  EXPECT_EQ(run->copy_threads, client::RunOptions().copy_threads);
  EXPECT_EQ(save->timeout, client::SaveOptions().timeout);
  EXPECT_EQ(save->busy, client::SaveOptions().busy);
  EXPECT_EQ(connection->connect_timeout, client::ClientOptions().connect_timeout);
  const Upload upload;
  EXPECT_EQ(internal::ToRunOptions(Passed(RunOptions{.upload = upload}))->upload->restore,
            client::Upload().restore);
}

TEST(ArgumentsTest, OptionsOfASaveArriveAsTheProgramSetsThem) {
  const SaveOptions options = {
      .tag = "one",
      .step = 3,
      .metrics = {{"loss", 0.5}, {"a.b", 2}},
      .suspect = "NaN",
      .pointers = {{"latest", "one"}},
      .busy = BusyPolicy::kSupersede,
      .timeout = seconds(8),
  };
  const auto save = internal::ToSaveOptions(Passed(options));
  ASSERT_TRUE(save.ok()) << save.status();
  EXPECT_EQ(save->tag, "one");
  EXPECT_EQ(save->step, 3);
  EXPECT_THAT(save->metrics, UnorderedElementsAre(Pair("loss", 0.5), Pair("a.b", 2)));
  EXPECT_EQ(save->suspect, "NaN");
  EXPECT_THAT(save->pointers, UnorderedElementsAre(Pair("latest", "one")));
  EXPECT_EQ(save->busy, client::BusyPolicy::kSupersede);
  EXPECT_EQ(save->timeout, seconds(8));
}

TEST(ArgumentsTest, OptionsOfReadersArriveAsTheProgramSetsThem) {
  const auto resume = internal::ToResumeArguments(
      Passed(ResumeOptions{.timeout = seconds(2), .strict = true, .allow_suspect = true}));
  ASSERT_TRUE(resume.ok()) << resume.status();
  EXPECT_EQ(resume->timeout, seconds(2));
  EXPECT_TRUE(resume->strict);
  EXPECT_TRUE(resume->allow_suspect);
  const auto open = internal::ToOpenOptions(Passed(OpenOptions{.strict = true, .background = true}));
  ASSERT_TRUE(open.ok()) << open.status();
  EXPECT_TRUE(open->strict);
  EXPECT_TRUE(open->background);
  const auto connection = internal::ToClientOptions(
      Passed(ClientOptions{.name = "me", .connect_timeout = seconds(1), .keeper = true}));
  ASSERT_TRUE(connection.ok()) << connection.status();
  EXPECT_EQ(connection->name, "me");
  EXPECT_EQ(connection->connect_timeout, seconds(1));
  EXPECT_TRUE(connection->keeper);
}

// A program that was compiled with a later header.
TEST(ArgumentsTest, OptionOfALaterVersionIsRefusedByItsName) {
  internal::Arguments arguments = internal::ToArguments(SaveOptions{.tag = "one"});
  arguments.Set("metrics.loss", 0.5);
  arguments.Set("compression", "zstd");
  const auto save = internal::ToSaveOptions(internal::Access::Of(arguments));
  EXPECT_EQ(save.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(save.status()), "UNKNOWN_OPTION");
  EXPECT_EQ(DetailsOf(save.status())["option"], "compression");
}

TEST(ArgumentsTest, OptionOfAnotherTypeIsRefusedByItsName) {
  internal::Arguments arguments = internal::ToArguments(SaveOptions{.tag = "one"});
  arguments.Set("timeout", "30s");
  const auto save = internal::ToSaveOptions(internal::Access::Of(arguments));
  EXPECT_EQ(DetailsOf(save.status())["option"], "timeout");
}

TEST(StatusTest, ErrorKeepsCodeReasonDetailsAndMessage) {
  const Status status = internal::Access::ToStatus(
      MakeError(absl::StatusCode::kAborted, "RANKS_MISSING", "ranks 1,2 are missing", {{"ranks", "1,2"}}));
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.code(), Code::kAborted);
  EXPECT_EQ(status.reason(), "RANKS_MISSING");
  EXPECT_THAT(status.details(), ElementsAre(Pair("ranks", "1,2")));
  EXPECT_EQ(status.ToString(), "ABORTED RANKS_MISSING: ranks 1,2 are missing");
}

TEST(StatusTest, OkHasNothing) {
  const Status status = internal::Access::ToStatus(absl::OkStatus());
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.code(), Code::kOk);
  EXPECT_EQ(status.reason() + status.message(), "");
  EXPECT_EQ(status.ToString(), "OK");
}

TEST(StatusTest, ExceptionBecomesAnError) {
  const Status status = internal::Guard([]() -> Status { throw std::bad_alloc(); });
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_THAT(status.message(), ::testing::HasSubstr("bad_alloc"));
}

TEST(ResultDeathTest, ValueOfAnErrorEndsTheProcessWithTheError) {
  const Result<int> result =
      internal::Access::ToStatus(MakeError(absl::StatusCode::kNotFound, "NO_CHECKPOINT", "there is none"));
  EXPECT_DEATH(result.value(), "NOT_FOUND NO_CHECKPOINT: there is none");
}

}  // namespace
}  // namespace ckptd
