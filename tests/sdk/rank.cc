// A rank that does what its standard input says: rank ENDPOINT ROOT RANK WORLD_SIZE COMMIT_SECONDS [LOCAL_RANK]
//   save TAG STEP BYTES   saves BYTES bytes of the value STEP
//   begin TAG STEP BYTES  the same in two steps:
//   seal TAG [PID]        ... and kills the process PID at once
//   wait TAG              waits for COMMITTED
// Each command has one line of output: "ok", or the error.
#include <ckptd/client.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <map>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace {

std::map<std::string, ckptd::Save>& Saves() {
  static std::map<std::string, ckptd::Save> saves;
  return saves;
}

// The saves, and the parts of those that are not sealed yet.
std::map<std::string, ckptd::Part>& Parts() {
  static std::map<std::string, ckptd::Part> parts;
  return parts;
}

ckptd::Status Remember(const std::string& tag, const ckptd::Result<ckptd::Save>& save) {
  if (save.ok()) Saves().insert_or_assign(tag, *save);
  return save.status();
}

ckptd::Status Begin(ckptd::Run& run, const std::string& file, const std::string& tag, int64_t step,
                    size_t size) {
  ckptd::Result<ckptd::Part> part = run.Begin({.tag = tag, .step = step});
  if (!part.ok()) return part.status();
  auto spans = part->AddFile(file, static_cast<int64_t>(size));
  if (!spans.ok()) return spans.status();
  for (std::span<std::byte> span : *spans) std::fill(span.begin(), span.end(), static_cast<std::byte>(step));
  Parts().insert_or_assign(tag, *std::move(part));
  return {};
}

ckptd::Status Do(ckptd::Run& run, const std::string& file, std::istringstream& words) {
  std::string command, tag;
  words >> command >> tag;
  if (command == "wait") return Saves().at(tag).Wait(ckptd::Level::kCommitted, std::chrono::seconds(60));
  if (command == "seal") {
    pid_t daemon = 0;
    words >> daemon;
    ckptd::Part part = std::move(Parts().extract(tag).mapped());
    ckptd::Result<ckptd::Save> save = part.Seal();
    if (daemon > 0) kill(daemon, SIGKILL);
    return Remember(tag, save);
  }
  int64_t step = 0;
  size_t size = 0;
  words >> step >> size;
  if (command == "begin") return Begin(run, file, tag, step, size);
  const std::vector<std::byte> bytes(size, static_cast<std::byte>(step));
  return Remember(tag, run.Save({.tag = tag, .step = step}, {{file, {bytes}}}));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6 && argc != 7) return 2;
  ckptd::RunOptions options;
  options.rank = std::atoi(argv[3]);
  options.world_size = std::atoi(argv[4]);
  options.commit_timeout = std::chrono::seconds(std::atoi(argv[5]));
  if (argc == 7) options.local_ranks = {std::atoi(argv[6])};
  options.launch_id = "one";
  ckptd::Result<ckptd::Client> client = ckptd::Client::Connect(argv[1]);
  ckptd::Result<ckptd::Run> run = client.ok() ? client->OpenRun(argv[2], options) : client.status();
  std::cout << (run.ok() ? "ok" : run.status().ToString()) << std::endl;
  const std::string file = "r" + std::to_string(options.rank) + ".bin";
  for (std::string line; run.ok() && std::getline(std::cin, line);) {
    std::istringstream words(line);
    const ckptd::Status status = Do(*run, file, words);
    std::cout << (status.ok() ? "ok" : status.ToString()) << std::endl;
  }
  return 0;
}
