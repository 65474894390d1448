#include "tests/integration/daemon_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "gtest/gtest.h"
#include "storage/base/unique_fd.h"
#include "tests/testing/child_process.h"

namespace ckptd {
namespace {

constexpr int kDeadlineMs = 60'000;
constexpr char kProgram[] = "daemon/runtime/ckptd";  // A test runs in the root of its runfiles.

std::string ReadFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

}  // namespace

DaemonProcess::DaemonProcess(int64_t pool_bytes, int64_t segment_bytes, const std::string& more)
    : pool_bytes_(pool_bytes), segment_bytes_(segment_bytes) {
  char folder[] = "/tmp/ckptd_XXXXXX";  // Socket paths must be short, and TEST_TMPDIR is not.
  EXPECT_NE(mkdtemp(folder), nullptr);
  folder_ = folder;
  std::filesystem::create_directory(folder_ + "/state");
  std::ofstream(folder_ + "/ckptd.txtpb")
      << "socket_path: \"" << folder_ << "/d.sock\"\n"
      << "state_directory: \"" << folder_ << "/state\"\n"
      << "pool { bytes: " << pool_bytes_ << " segment_bytes: " << segment_bytes_ << " }\n"
      << "metrics { port: -1 }\n"
      << more;
  Start();
}

DaemonProcess::~DaemonProcess() {
  if (pid_ > 0) Kill();
  if (testing::Test::HasFailure()) std::cerr << "---- log of ckptd\n" << Log();
  std::filesystem::remove_all(folder_);
}

void DaemonProcess::Start() {
  int ready[2];
  ASSERT_EQ(pipe2(ready, O_CLOEXEC), 0);
  UniqueFd reader(ready[0]), writer(ready[1]);
  UniqueFd log(open((folder_ + "/log").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  pid_ = StartProgram({kProgram, "--config=" + folder_ + "/ckptd.txtpb", "--private",
                       "--ready_fd=" + std::to_string(writer.get())},
                      log.get(), log.get(), writer.get());
  writer.reset();
  pollfd serving = {reader.get(), POLLIN, 0};
  ASSERT_EQ(poll(&serving, 1, kDeadlineMs), 1) << "ckptd did not become ready in time\n" << Log();
  char word[16] = {};
  ASSERT_GT(read(reader.get(), word, sizeof word - 1), 0) << "ckptd ended before it was ready\n" << Log();
  ASSERT_STREQ(word, "READY\n");
}

int DaemonProcess::Wait() {
  const int status = WaitForEnd(pid_);
  pid_ = -1;
  return status;
}

void DaemonProcess::Kill() {
  kill(pid_, SIGKILL);
  Wait();
}

void DaemonProcess::Stop() {
  kill(pid_, SIGTERM);
  EXPECT_EQ(Wait(), 0) << Log();
}

std::string DaemonProcess::MakeRoot(const std::string& name) {
  const std::string path = folder_ + "/" + name;
  std::filesystem::create_directory(path);
  return path;
}

std::string DaemonProcess::Log() const { return ReadFile(folder_ + "/log"); }

ProgramResult RunProgram(const std::vector<std::string>& arguments) {
  char folder[] = "/tmp/ckptd_run_XXXXXX";
  EXPECT_NE(mkdtemp(folder), nullptr);
  const std::string base = folder;
  UniqueFd out(open((base + "/out").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  UniqueFd err(open((base + "/err").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  ProgramResult result;
  result.status = WaitForEnd(StartProgram(arguments, out.get(), err.get()));
  result.out = ReadFile(base + "/out");
  result.err = ReadFile(base + "/err");
  std::filesystem::remove_all(base);
  return result;
}

}  // namespace ckptd
