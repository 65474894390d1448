// ckptctl against the real daemon: what an operator sees as text, as JSON and as exit status.
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <thread>

#include "ckptd/v1/messages.pb.h"
#include "client/cpp/client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/errors.h"
#include "tests/integration/daemon_process.h"

namespace ckptd {
namespace {

using client::Client;
using client::Level;
using client::Part;
using client::Save;
using Job = client::Run;  // In a fixture, Run would be testing::Test's method.
using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class CkptctlTest : public testing::Test {
 protected:
  CkptctlTest() : run_(*Client::Connect(daemon_.endpoint())->OpenRun(root_, {.launch_id = "launch-1"})) {}

  void Commit(const std::string& tag, int64_t step) {
    const std::vector<std::byte> bytes(3000, std::byte{1});
    absl::StatusOr<Save> save = run_.Save({.tag = tag, .step = step}, {{"model.bin", {bytes}}});
    ASSERT_TRUE(save.ok()) << save.status();
    ASSERT_TRUE(save->Wait(Level::kCommitted, seconds(30)).ok());
  }

  ProgramResult Ctl(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"client/ckptctl/ckptctl", "--endpoint=" + daemon_.endpoint()});
    return RunProgram(arguments);
  }

  template <typename Message>
  Message Json(const std::vector<std::string>& arguments) {
    std::vector<std::string> all = arguments;
    all.push_back("--output=json");  // The flag also works after the command.
    const ProgramResult result = Ctl(all);
    EXPECT_EQ(result.status, 0) << result.err;
    Message message;
    EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(result.out, &message).ok()) << result.out;
    return message;
  }

  DaemonProcess daemon_;
  const std::string root_ = daemon_.MakeRoot();
  Job run_;
};

TEST_F(CkptctlTest, StatusShowsRunAndSavesInFlight) {
  Commit("step_1", 1);
  absl::StatusOr<Part> part = run_.Begin({.tag = "step_2", .step = 2});
  ASSERT_TRUE(part.ok()) << part.status();
  ASSERT_TRUE(part->AddFile("f", 5000).ok());
  const ProgramResult text = Ctl({"status"});
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_THAT(text.out, AllOf(HasSubstr("SERVING"), HasSubstr(root_), HasSubstr("step_1 (step 1"),
                              HasSubstr("pool 64.0 MiB"), HasSubstr("step_2"), HasSubstr("OPEN"),
                              HasSubstr("missing 0")));
  const ProgramResult verbose = Ctl({"status", "--verbose"});
  EXPECT_THAT(verbose.out, AllOf(HasSubstr("  IN FLIGHT  STEP"), HasSubstr("segments of"),
                                 HasSubstr("missing 0"), HasSubstr(run_.name())));
  EXPECT_GT(std::count(verbose.out.begin(), verbose.out.end(), '\n'),
            std::count(text.out.begin(), text.out.end(), '\n'));
  const auto status = Json<v1::Status>({"status"});
  ASSERT_EQ(status.runs_size(), 1);
  EXPECT_EQ(status.runs(0).latest().tag(), "step_1");
  ASSERT_EQ(status.runs(0).in_flight_size(), 1);
  EXPECT_EQ(status.runs(0).in_flight(0).missing_ranks_size(), 1);
  EXPECT_EQ(status.pool().total_bytes(), 64 << 20);
}

TEST_F(CkptctlTest, ListAndDescribeAcceptEveryFormOfName) {
  Commit("step_1", 1);
  Commit("step_2", 2);
  EXPECT_THAT(Ctl({"list"}).out, AllOf(HasSubstr("step_2"), HasSubstr("step_1"), HasSubstr("COMMITTED")));
  EXPECT_EQ(Json<v1::ListCheckpointsResponse>({"list", root_}).checkpoints(0).tag(), "step_2");
  EXPECT_EQ(Json<v1::ListCheckpointsResponse>({"list", run_.name()}).checkpoints_size(), 2);
  for (const std::string& name : {std::string("step_2"), root_ + "/step_2",
                                  run_.name() + "/checkpoints/step_2", std::string("latest")}) {
    const auto checkpoint = Json<v1::Checkpoint>({"describe", name});
    EXPECT_EQ(checkpoint.tag(), "step_2") << name;
    ASSERT_EQ(checkpoint.files_size(), 1);
    EXPECT_EQ(checkpoint.files(0).path(), "model.bin");
  }
  EXPECT_THAT(Ctl({"describe", "step_2"}).out, AllOf(HasSubstr("3000 bytes"), HasSubstr("model.bin")));
}

TEST_F(CkptctlTest, MissingCheckpointExitsWithOneAndOneLine) {
  Commit("step_1", 1);
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"describe", "step_9"},
                                                    {"wait", "step_9"},
                                                    {"pin", "step_9"},
                                                    {"abort", "step_1"},
                                                    {"list", "/nowhere"}}) {
    const ProgramResult result = Ctl(arguments);
    EXPECT_EQ(result.status, 1) << arguments[0] << ": " << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_TRUE(result.err.starts_with("ckptctl: ")) << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_THAT(result.err, HasSubstr("; ")) << "it does not say what to do";
  }
}

TEST_F(CkptctlTest, ReadsARootThatTheDaemonDoesNotKnowFromDiskAndLeavesItUnknown) {
  Commit("step_1", 1);
  const std::string other = root_ + "_other", empty = root_ + "_empty";
  std::filesystem::create_directory(other);
  std::filesystem::create_directory(empty);
  std::filesystem::copy(root_ + "/step_1", other + "/step_1", std::filesystem::copy_options::recursive);
  const ProgramResult listed = Ctl({"list", other});
  EXPECT_EQ(listed.status, 0) << listed.err;
  EXPECT_THAT(listed.out, AllOf(HasSubstr("step_1"), HasSubstr("COMMITTED")));
  EXPECT_THAT(listed.err, AllOf(HasSubstr("from disk"), HasSubstr("the daemon does not know it")));
  const ProgramResult described = Ctl({"describe", other + "/latest"});
  EXPECT_EQ(described.status, 0) << described.err;
  EXPECT_THAT(described.out, AllOf(HasSubstr("3000 bytes"), HasSubstr("model.bin")));
  EXPECT_EQ(Json<v1::Status>({"status"}).runs_size(), 1);
  EXPECT_FALSE(std::filesystem::exists(other + "/.ckptd"));
  EXPECT_EQ(Ctl({"list", root_}).err, "");  // The daemon serves this one.
  const ProgramResult no_root = Ctl({"list", empty});
  EXPECT_EQ(no_root.status, 1);
  EXPECT_THAT(no_root.err, AllOf(HasSubstr(root_), HasSubstr("UNKNOWN_RUN")));
  EXPECT_EQ(std::count(no_root.err.begin(), no_root.err.end(), '\n'), 1) << no_root.err;
}

TEST_F(CkptctlTest, ShowsNoColorsOutsideOfATerminal) {
  absl::StatusOr<Part> part = run_.Begin({.tag = "step_1"});
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_EQ(Ctl({"abort", root_ + "/step_1"}).status, 0);
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"status"}, {"list", "--all"}}) {
    const ProgramResult result = Ctl(arguments);
    EXPECT_THAT(result.out, AllOf(HasSubstr("FAILED"), Not(HasSubstr("\x1b")))) << arguments[0];
  }
}

TEST_F(CkptctlTest, PinHoldsUntilUnpin) {
  Commit("step_1", 1);
  EXPECT_EQ(Ctl({"pin", "step_1"}).status, 0);
  EXPECT_THAT(Ctl({"list"}).out, HasSubstr("pinned"));
  EXPECT_EQ(ReasonOf(run_.Save({.tag = "step_1"}, {}).status()), "PINNED");
  EXPECT_EQ(Ctl({"unpin", "step_1"}).status, 0);
  EXPECT_THAT(Ctl({"list"}).out, Not(HasSubstr("pinned")));
  Commit("step_1", 1);
}

TEST_F(CkptctlTest, WaitDistinguishesReachedFromTimeout) {
  Commit("step_1", 1);
  const ProgramResult reached = Ctl({"wait", "step_1", "--level", "committed"});
  EXPECT_EQ(reached.status, 0) << reached.err;
  EXPECT_EQ(reached.out, "step_1 is COMMITTED\n");
  absl::StatusOr<Part> part = run_.Begin({.tag = "step_2"});
  ASSERT_TRUE(part.ok()) << part.status();
  const ProgramResult early = Ctl({"wait", "step_2", "--level=sealed", "--timeout=0.1"});
  EXPECT_EQ(early.status, 1) << early.err;
  EXPECT_EQ(early.out, "step_2 is OPEN\n");
}

TEST_F(CkptctlTest, AbortEndsSaveAndTrainerReceivesMessage) {
  absl::StatusOr<Part> part = run_.Begin({.tag = "step_1"});
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_EQ(Ctl({"abort", root_ + "/step_1", "--message", "disk is being replaced"}).status, 0);
  const absl::Status sealed = part->Seal().status();
  EXPECT_EQ(ReasonOf(sealed), "SAVE_ABORTED") << sealed;
  EXPECT_THAT(std::string(sealed.message()), HasSubstr("disk is being replaced"));
  EXPECT_THAT(Ctl({"status"}).out, HasSubstr("last failure step_1 FAILED: SAVE_ABORTED"));
  EXPECT_THAT(Ctl({"list", "--all"}).out, HasSubstr("SAVE_ABORTED"));
  const ProgramResult waited = Ctl({"wait", "step_1"});
  EXPECT_EQ(waited.status, 1);
  EXPECT_THAT(waited.out, HasSubstr("FAILED: SAVE_ABORTED"));
}

TEST_F(CkptctlTest, DrainEndsWhenNothingIsUnderWayAndUndoTakesSavesAgain) {
  Commit("step_1", 1);
  const ProgramResult drained = Ctl({"drain", "--message", "a new kernel"});
  EXPECT_EQ(drained.status, 0) << drained.err;
  EXPECT_THAT(drained.out, AllOf(HasSubstr("DRAINED after"), HasSubstr("nothing is lost")));
  EXPECT_THAT(Ctl({"status"}).out, AllOf(HasSubstr(", DRAINED for"), HasSubstr("(a new kernel)")));
  const absl::Status refused = run_.Save({.tag = "step_2"}, {}).status();
  EXPECT_EQ(ReasonOf(refused), "NODE_DRAINED") << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("a new kernel"));
  EXPECT_EQ(Ctl({"drain", "--undo"}).status, 0);
  Commit("step_2", 2);
}

TEST_F(CkptctlTest, DrainExitsWithFiveAtItsDeadlineAndSaysWhatWouldBeLost) {
  absl::StatusOr<Part> part = run_.Begin({.tag = "step_1"});
  ASSERT_TRUE(part.ok()) << part.status();
  const ProgramResult early = Ctl({"drain", "--deadline=0.2s"});
  EXPECT_EQ(early.status, 5) << early.err;
  EXPECT_THAT(early.out, AllOf(HasSubstr("NOT DRAINED"), HasSubstr(root_ + "/step_1"),
                               HasSubstr("ranks 0 to seal"), HasSubstr("lost: not all ranks")));
  EXPECT_THAT(early.err, HasSubstr("still under way"));
  const auto status = Json<v1::Status>({"status"});
  EXPECT_EQ(status.state(), "DRAINING");
  ASSERT_TRUE(part->Seal().ok()) << "what was begun goes on";
  EXPECT_EQ(Ctl({"drain", "--deadline=1min"}).status, 0);
  const auto drained = Json<v1::Status>({"drain", "--deadline=60"});
  EXPECT_TRUE(drained.drain().drained());
  EXPECT_EQ(drained.runs(0).latest().tag(), "step_1");
  EXPECT_EQ(Ctl({"drain", "--deadline=soon"}).status, 2);
}

TEST_F(CkptctlTest, TopShowsSavesRunsAndSessionsOnceForScripts) {
  absl::StatusOr<Part> part = run_.Begin({.tag = "step_1"});
  ASSERT_TRUE(part.ok()) << part.status();
  ASSERT_TRUE(part->AddFile("f", 5000).ok());
  const ProgramResult top = Ctl({"top", "--once", "--interval=0.1"});
  EXPECT_EQ(top.status, 0) << top.err;
  EXPECT_THAT(top.out, AllOf(HasSubstr("SERVING, 1 session; saves write"), HasSubstr(root_ + "/step_1"),
                             HasSubstr("ranks 0 to seal"), HasSubstr("MEMORY"), Not(HasSubstr("\x1b"))));
  EXPECT_EQ(Json<v1::Status>({"top", "--once", "--interval=0.1"}).runs(0).in_flight(0).tag(), "step_1");
}

TEST_F(CkptctlTest, AllNodesIsRefusedWhereThereAreNone) {
  const ProgramResult result = Ctl({"status", "--all-nodes"});
  EXPECT_EQ(result.status, 4);
  EXPECT_THAT(result.err, HasSubstr("no block cluster"));
}

TEST_F(CkptctlTest, WatchUntilIdleEndsAfterLastSave) {
  EXPECT_EQ(Ctl({"watch", "--until-idle"}).status, 0);  // Nothing in flight.
  absl::StatusOr<Part> part = run_.Begin({.tag = "step_1"});
  ASSERT_TRUE(part.ok()) << part.status();
  auto watch = std::async(std::launch::async, [this] {
    return Ctl({"watch", root_, "--until-idle", "--timeout=50", "--interval=0.1"});
  });
  absl::StatusOr<Save> save = part->Seal();
  ASSERT_TRUE(save.ok()) << save.status();
  const ProgramResult result = watch.get();
  EXPECT_EQ(result.status, 0) << result.err;
  absl::StatusOr<Part> doomed = run_.Begin({.tag = "step_2"});
  ASSERT_TRUE(doomed.ok()) << doomed.status();
  const ProgramResult early = Ctl({"watch", "--until-idle", "--timeout=0.3", "--interval=0.1"});
  EXPECT_EQ(early.status, 1);
  EXPECT_THAT(early.out, AllOf(HasSubstr("step_2  OPEN"), HasSubstr("missing 0")));
}

TEST_F(CkptctlTest, VerifyReadsCheckpointOfDaemon) {
  Commit("step_1", 1);
  Commit("step_2", 2);
  const ProgramResult all = Ctl({"verify", root_});
  EXPECT_EQ(all.status, 0) << all.err << all.out;
  EXPECT_THAT(all.out, HasSubstr("2 checkpoints, 5.9 KiB read, 0 damaged"));
  EXPECT_EQ(Ctl({"verify", root_ + "/step_1"}).status, 0);
  EXPECT_EQ(Ctl({"doctor", root_}).status, 0);
}

TEST_F(CkptctlTest, SaveCommitsFilesInARootThatItMakes) {
  const std::string file = root_ + "_model.bin", empty = root_ + "_empty.txt", other = root_ + "_new/deep";
  std::string content(3'000'000, 'x');  // More than one segment.
  for (size_t i = 0; i < content.size(); i += 1000) content[i] = static_cast<char>(i / 1000);
  std::ofstream(file) << content;
  std::ofstream(empty).flush();
  const ProgramResult saved = Ctl({"save", other + "/first", file, empty, "--step=7"});
  EXPECT_EQ(saved.status, 0) << saved.err;
  EXPECT_THAT(saved.out, HasSubstr("first is COMMITTED"));
  const std::string name = std::filesystem::path(file).filename().string();
  std::ifstream in(other + "/first/" + name);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), content);
  const auto checkpoint = Json<v1::Checkpoint>({"describe", other + "/first"});
  EXPECT_EQ(checkpoint.step(), 7);
  EXPECT_EQ(checkpoint.files_size(), 2);
  // A second command is a launch of its own, and removes nothing.
  EXPECT_EQ(Json<v1::Checkpoint>({"save", other + "/second", file}).level(), v1::COMMITTED);
  EXPECT_EQ(Json<v1::ListCheckpointsResponse>({"list", other}).checkpoints_size(), 2);
  EXPECT_EQ(Ctl({"verify", other}).status, 0);
}

TEST_F(CkptctlTest, SaveIsRefusedWhileAJobRunsInTheRoot) {
  const std::string file = root_ + "_model.bin";
  std::ofstream(file) << "x";
  const ProgramResult refused = Ctl({"save", root_ + "/first", file});
  EXPECT_EQ(refused.status, 4);
  EXPECT_THAT(refused.err, HasSubstr("RUN_IN_USE"));
  Commit("step_1", 1);  // The job was not fenced off.
}

TEST_F(CkptctlTest, SaveNamesTheFileThatItCannotSave) {
  const std::string file = root_ + "_model.bin", other = root_ + "_new";
  std::ofstream(file) << "x";
  for (const auto& [words, message] :
       {std::pair(std::vector<std::string>{other + "/a", "/nowhere/f"}, "opening /nowhere/f"),
        {{other + "/a", file, root_}, "name the files in it"},
        {{other + "/a", file, "/dev/null"}, "/dev/null is not a regular file"},
        {{other + "/a", file, file}, "FILE_CONFLICT"},
        {{"first", file}, "is not ROOT/TAG"},
        {{other + "/", file}, "is not ROOT/TAG"}}) {
    std::vector<std::string> arguments = words;
    arguments.insert(arguments.begin(), "save");
    const ProgramResult refused = Ctl(arguments);
    EXPECT_NE(refused.status, 0) << message;
    EXPECT_THAT(refused.err, HasSubstr(message));
    EXPECT_EQ(std::count(refused.err.begin(), refused.err.end(), '\n'), 1) << refused.err;
  }
  EXPECT_FALSE(std::filesystem::exists(other + "/a"));
}

TEST_F(CkptctlTest, ExitsWithThreeWithoutDaemonAndWithTwoOnBadUsage) {
  EXPECT_EQ(Ctl({"list", "--no-such-option"}).status, 2);
  EXPECT_EQ(Ctl({"list", "--al"}).err, "ckptctl: list has no option --al; did you mean --all?\n");
  EXPECT_EQ(Ctl({"lst"}).err, "ckptctl: there is no command \"lst\"; did you mean list?\n");
  EXPECT_EQ(Ctl({"frobnicate"}).status, 2);
  EXPECT_EQ(Ctl({"wait", "step_1", "--level=durable"}).status, 2);
  EXPECT_EQ(Ctl({"--help"}).status, 0);
  daemon_.Stop();
  const ProgramResult result = Ctl({"status"});
  EXPECT_EQ(result.status, 3);
  EXPECT_THAT(result.err, AllOf(HasSubstr(daemon_.endpoint()), HasSubstr("is it running")));
}

}  // namespace
}  // namespace ckptd
