// A training loop with ckptd: train ENDPOINT ROOT STEPS
//
// The "model" is a vector of numbers, which every step changes. Run it again with more steps, and it
// continues from the last committed checkpoint.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include "client/cpp/client.h"

namespace {

using ckptd::client::Checkpoint;
using ckptd::client::Client;
using ckptd::client::Level;
using ckptd::client::Run;
using ckptd::client::Save;

int Fail(const absl::Status& status) {
  std::cerr << "train: " << status.message() << "\n";
  return 1;
}

void TrainStep(std::vector<uint64_t>& model, int64_t step) {
  for (size_t i = 0; i < model.size(); ++i)
    model[i] = model[i] * 6364136223846793005u + i + static_cast<uint64_t>(step);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: train ENDPOINT ROOT STEPS\n";
    return 2;
  }
  absl::StatusOr<Client> client = Client::Connect(argv[1]);
  if (!client.ok()) return Fail(client.status());
  absl::StatusOr<Run> run = client->OpenRun(argv[2], {.rank = 0, .world_size = 1, .num_kept_ckpts = 3});
  if (!run.ok()) return Fail(run.status());

  std::vector<uint64_t> model(1 << 20);
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(model));
  int64_t step = 0;
  {
    absl::StatusOr<std::optional<Checkpoint>> last = run->Resume();
    if (!last.ok()) return Fail(last.status());
    if (last->has_value()) {
      if (absl::Status read = (*last)->ReadInto("model.bin", 0, bytes); !read.ok()) return Fail(read);
      step = (*last)->info().step.value_or(0);
      // Waits until every rank has read its part. If one could not, all of them resume again.
      if (absl::Status finished = (*last)->Finish(); !finished.ok()) return Fail(finished);
      std::cout << "resumed from " << (*last)->info().tag << "\n";
    }
  }

  for (const int64_t end = std::atoll(argv[3]); step < end;) {
    TrainStep(model, ++step);
    absl::StatusOr<Save> save =
        run->Save({.tag = "step_" + std::to_string(step), .step = step}, {{"model.bin", {bytes}}});
    if (!save.ok()) return Fail(save.status());
    std::cout << "step " << step << ": stall " << static_cast<double>(save->timing().stall.count()) / 1e6
              << " ms\n";
    // Training continues while the daemon writes. Only the last save is waited for.
    if (step < end) continue;
    if (absl::Status durable = save->Wait(Level::kCommitted); !durable.ok()) return Fail(durable);
    std::cout << save->tag() << " is committed\n";
  }
  return 0;
}
