// A training loop with ckptd: train ENDPOINT ROOT STEPS
//
// The "model" is a vector of numbers, which every step changes. Run it again with more steps, and it
// continues from the last committed checkpoint. A launcher of several ranks sets RANK and WORLD_SIZE; on
// several nodes LOCAL_RANKS, too, such as "2,3", and CKPTD_LAUNCH_ID. Each rank has its own part of the
// model.
#include <ckptd/client.h>

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <vector>

namespace {

int Fail(const ckptd::Status& status) {
  std::cerr << "train: " << status.ToString() << "\n";
  return 1;
}

std::string Environment(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : otherwise;
}

ckptd::RunOptions OptionsOfLauncher() {
  ckptd::RunOptions options;
  options.rank = std::stoi(Environment("RANK", "0"));
  options.world_size = std::stoi(Environment("WORLD_SIZE", "1"));
  std::istringstream ranks(Environment("LOCAL_RANKS", ""));
  for (std::string rank; std::getline(ranks, rank, ',');) options.local_ranks.push_back(std::stoi(rank));
  options.retention = ckptd::Keep{.last = 3};
  return options;
}

void TrainStep(std::vector<uint64_t>& model, int64_t step) {
  for (size_t i = 0; i < model.size(); ++i)
    model[i] = model[i] * 6364136223846793005u + i + static_cast<uint64_t>(step);
}

// Reads this rank's part of the last checkpoint, and returns its step; 0: there is none yet.
ckptd::Result<int64_t> Resume(ckptd::Run& run, const std::string& file, std::span<std::byte> bytes) {
  ckptd::Result<std::optional<ckptd::Checkpoint>> last = run.Resume();
  if (!last.ok()) return last.status();
  if (!last->has_value()) return int64_t{0};
  ckptd::Checkpoint& checkpoint = **last;
  if (ckptd::Status read = checkpoint.ReadInto(file, 0, bytes); !read.ok()) return read;
  // Waits until every rank has read its part. If one could not, all of them resume again.
  if (ckptd::Status finished = checkpoint.Finish(); !finished.ok()) return finished;
  std::cout << "resumed from " << checkpoint.info().tag() << std::endl;
  return checkpoint.info().step().value_or(0);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: train ENDPOINT ROOT STEPS\n";
    return 2;
  }
  const ckptd::RunOptions options = OptionsOfLauncher();
  ckptd::Result<ckptd::Client> client = ckptd::Client::Connect(argv[1]);
  if (!client.ok()) return Fail(client.status());
  ckptd::Result<ckptd::Run> run = client->OpenRun(argv[2], options);
  if (!run.ok()) return Fail(run.status());

  std::vector<uint64_t> model(1 << 20);
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(model));
  const std::string file = "model_" + std::to_string(options.rank) + ".bin";
  ckptd::Result<int64_t> resumed = Resume(*run, file, bytes);
  if (!resumed.ok()) return Fail(resumed.status());

  int64_t step = *resumed;
  for (const int64_t end = std::atoll(argv[3]); step < end;) {
    TrainStep(model, ++step);
    ckptd::Result<ckptd::Save> save =
        run->Save({.tag = "step_" + std::to_string(step), .step = step}, {{file, {bytes}}});
    if (!save.ok()) return Fail(save.status());
    std::cout << "step " << step << ": stall " << static_cast<double>(save->time().count()) / 1e6 << " ms"
              << std::endl;
    // Training continues while the daemon writes. Only the last save is waited for.
    if (step < end) continue;
    if (ckptd::Status durable = save->Wait(ckptd::Level::kCommitted); !durable.ok()) return Fail(durable);
    std::cout << save->tag() << " is committed" << std::endl;
  }
  return 0;
}
