#include "client/convert/nxd/nxd_tag.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/convert/files/rank_names.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

constexpr size_t kMaxNamed = 32;

struct Shard {
  bool full = false;
  int dp = 0, tp = 0, pp = 0;
};

// Accepts only names that NxD itself would write: dp_rank_1_… is not one.
std::optional<Shard> ParseShard(const std::string& name) {
  std::string_view rest = name;
  Shard shard;
  shard.full = rest.starts_with("full_");
  if (shard.full) {
    rest.remove_prefix(std::string_view("full_").size());
  } else {
    const std::optional<int> dp = ConsumeRank(rest, "dp_rank_");
    if (!dp || !rest.starts_with("_")) return std::nullopt;
    rest.remove_prefix(1);
    shard.dp = *dp;
  }
  const std::optional<int> tp = ConsumeRank(rest, "tp_rank_");
  const std::optional<int> pp = tp ? ConsumeRank(rest, "_pp_rank_") : std::nullopt;
  if (!pp) return std::nullopt;
  shard.tp = *tp;
  shard.pp = *pp;
  if (NxdOptimName(shard.full, shard.dp, shard.tp, shard.pp) != name) return std::nullopt;
  return shard;
}

absl::Status CannotConvert(const std::string& why) {
  return MakeError(absl::StatusCode::kFailedPrecondition, "CANNOT_CONVERT", why);
}

absl::Status NoState(const std::string& why) {
  return MakeError(
      absl::StatusCode::kNotFound, "NO_OPTIMIZER_STATE",
      absl::StrCat(why, "; --input_dir must be the directory of one tag, with files optim/dp_rank_…"));
}

// True for a rank's file of an optimizer without ZeRO-1 in a model with experts.
bool NamesExperts(const std::string& name) {
  return name.starts_with("dp_rank_") && name.find("_ep_rank_") != std::string::npos;
}

// Checks that every rank has a file. Names only the first missing ones: a huge number in one name may ask for
// 2^60 files.
absl::Status CheckComplete(const NxdTag& found, const std::set<std::string>& files) {
  const int64_t wanted = int64_t{found.dp} * found.tp * found.pp;
  const int64_t count = wanted - static_cast<int64_t>(files.size());
  if (count == 0) return absl::OkStatus();
  std::vector<std::string> missing;
  for (int64_t i = 0; i < wanted && missing.size() < kMaxNamed; ++i) {
    std::string name =
        NxdOptimName(found.full, static_cast<int>(i % found.dp), static_cast<int>(i / found.dp % found.tp),
                     static_cast<int>(i / found.dp / found.tp));
    if (!files.contains(name)) missing.push_back(std::move(name));
  }
  const auto unnamed = count - static_cast<int64_t>(missing.size());
  return MakeError(absl::StatusCode::kFailedPrecondition, "INCOMPLETE_CHECKPOINT",
                   absl::StrCat("optim/ has files up to dp ", found.dp, ", tp ", found.tp, ", pp ", found.pp,
                                ", and of these ", count, count == 1 ? " is" : " are",
                                " missing: ", absl::StrJoin(missing, ", "),
                                unnamed > 0 ? absl::StrCat(" and ", unnamed, " more") : "",
                                "; copy them here from the nodes that have them"));
}

absl::Status ReadOptim(FileSystem& fs, Handle tag, NxdTag& found) {
  absl::StatusOr<ScopedHandle> optim = OpenScoped(fs, tag, kOptimDirectory, OpenMode::kDirectory);
  if (absl::IsNotFound(optim.status())) return NoState("the tag has no directory optim/");
  if (!optim.ok()) return Annotate(optim.status(), "optim/");
  CKPTD_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, fs.List(optim->get()));
  std::vector<Shard> shards;
  std::set<std::string> files;
  std::set<std::string> known;
  for (const DirEntry& entry : entries) {
    if (entry.name.ends_with(".distcp") || entry.name == ".metadata") {
      return CannotConvert(absl::StrCat("optim/", entry.name,
                                        " belongs to one of PyTorch's distributed checkpoints "
                                        "(use_zero1_dcp): load it with the number of ranks "
                                        "that saved it, and save it without use_zero1_dcp"));
    }
    if (NamesExperts(entry.name)) {
      return CannotConvert(
          absl::StrCat("optim/", entry.name,
                       " belongs to an optimizer without ZeRO-1, whose state is not sharded: there is "
                       "nothing to convert"));
    }
    const std::optional<Shard> shard = ParseShard(entry.name);
    if (!shard || entry.type != FileType::kRegular) continue;
    shards.push_back(*shard);
    files.insert(entry.name);
    for (const std::string& name : {entry.name, NxdInfoName(entry.name), NxdTensorsName(entry.name)})
      known.insert(name);
  }
  if (shards.empty()) return NoState("optim/ has no file of a ZeRO-1 optimizer");
  found.full = shards.front().full;
  for (const Shard& shard : shards) {
    if (shard.full != found.full) {
      return CannotConvert(absl::StrCat("optim/ has both a merged state (",
                                        NxdOptimName(true, 0, shard.tp, shard.pp),
                                        ") and shards (dp_rank_…): move one of them away"));
    }
    found.dp = std::max(found.dp, shard.dp + 1);
    found.tp = std::max(found.tp, shard.tp + 1);
    found.pp = std::max(found.pp, shard.pp + 1);
  }
  for (const DirEntry& entry : entries) {
    if (!known.contains(entry.name)) found.skipped.push_back(absl::StrCat(kOptimDirectory, "/", entry.name));
    found.xser |= known.contains(entry.name) && entry.name.ends_with(".tensors");
  }
  return CheckComplete(found, files);
}

absl::Status Carry(FileSystem& fs, Handle tag, const std::string& path, FileType type, NxdTag& found) {
  if (type == FileType::kRegular) {
    CKPTD_ASSIGN_OR_RETURN(const FileStat stat, fs.Stat(tag, path));
    found.carried.push_back({path, stat.size});
    return absl::OkStatus();
  }
  if (type != FileType::kDirectory) {
    return MakeError(
        absl::StatusCode::kFailedPrecondition, "NOT_A_FILE",
        absl::StrCat(path,
                     " is neither a file nor a directory (a symbolic link?): replace it by what it "
                     "stands for"),
        {{"path", path}});
  }
  found.carried_directories.push_back(path);
  CKPTD_ASSIGN_OR_RETURN(const ScopedHandle dir, OpenScoped(fs, tag, path, OpenMode::kDirectory));
  CKPTD_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, fs.List(dir.get()));
  for (const DirEntry& entry : entries) {
    CKPTD_RETURN_IF_ERROR(Carry(fs, tag, absl::StrCat(path, "/", entry.name), entry.type, found));
  }
  return absl::OkStatus();
}

}  // namespace

std::string NxdOptimName(bool full, int dp, int tp, int pp) {
  const std::string rest = absl::StrFormat("tp_rank_%02d_pp_rank_%02d.pt", tp, pp);
  return full ? absl::StrCat("full_", rest) : absl::StrCat(absl::StrFormat("dp_rank_%02d_", dp), rest);
}

absl::StatusOr<NxdTag> ScanNxdTag(FileSystem& fs, Handle tag, bool allow_unfinished) {
  NxdTag found;
  CKPTD_RETURN_IF_ERROR(ReadOptim(fs, tag, found));
  CKPTD_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, fs.List(tag));
  bool begun = false;
  bool done = false;
  for (const DirEntry& entry : entries) {
    begun |= entry.name == "checkpoint";
    done |= entry.name == "done";
    if (entry.name == kOptimDirectory || entry.name == "checkpoint" || entry.name == "done") continue;
    if (entry.name == "model" || entry.name == "scheduler.pt" || entry.name == "user_content.pt") {
      CKPTD_RETURN_IF_ERROR(Carry(fs, tag, entry.name, entry.type, found));
    } else {
      found.skipped.push_back(entry.name);
    }
  }
  if (begun && !done && !allow_unfinished) {
    return MakeError(
        absl::StatusCode::kFailedPrecondition, "INCOMPLETE_CHECKPOINT",
        "the tag has `checkpoint` but no `done`: its save has not ended, so its files may be of two saves; "
        "--force converts it all the same");
  }
  return found;
}

}  // namespace ckptd
