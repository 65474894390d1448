// ckptctl: the command-line tool to inspect and control a ckptd and its checkpoints. See docs/ckptctl.md.
#include <grpc/support/log.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ckptd/version.h"
#include "client/ckptctl/commands/commands.h"
#include "client/ckptctl/completion.h"
#include "client/ckptctl/convert/convert.h"
#include "client/ckptctl/convert/convert_dcp.h"
#include "client/ckptctl/convert/convert_deepspeed.h"
#include "client/ckptctl/convert/describe_tensors.h"
#include "client/ckptctl/debug/debug_dump.h"
#include "client/ckptctl/text/text.h"
#include "client/ckptctl/usage.h"

namespace ckptd::ctl {
namespace {

constexpr char kFooter[] =
    "RUN is runs/ID, or the path of a root. NAME is ROOT/TAG, runs/ID/checkpoints/TAG, or a TAG if there is "
    "only one run.\n"
    "Exit status: 0 ok, 1 the expected state does not hold (not found, failed, damaged, not in time), 2 "
    "usage,\n"
    "3 no daemon answers, 4 refused, 5 not drained in time. docs/ckptctl.md has an example of each command.";

using Command = std::function<absl::StatusOr<ExitCode>()>;

// The parsed command line.
struct Arguments {
  std::vector<std::string> tags;
  bool allow_removal = false;
  std::string output = "text", run, name, level = "committed", message, path, url;
  double timeout = 0, interval = 0.5;
  int64_t sequence = 0;
  double top_interval = 2;
  bool once = false;
  DrainArguments drain;
  HistoryArguments history;
  bool all = false, tensors = false, verbose = false, until_idle = false, unverified = false, force = false;
  bool there = false, not_there = false;
  RetentionArguments retention;
  SaveArguments save;
  DoctorNodes nodes;
  std::string shell, output_file;
  ConvertArguments convert;
  ZeroToFp32Arguments zero_to_fp32;
  DsToUniversalArguments universal;
  DcpArguments dcp;
};

CLI::App* Add(CLI::App& app, const std::string& name, const std::string& what, Command* chosen,
              Command command) {
  CLI::App* sub = app.add_subcommand(name, what);
  sub->fallthrough();  // Accept global options after the command, too.
  sub->callback([chosen, command] { *chosen = command; });
  return sub;
}

// Seconds, or a number with a unit: "90", "110s", "2min", "6h", "30d".
void AddDuration(CLI::App* command, const std::string& name, double& seconds, const std::string& what) {
  const std::map<std::string, double> units = {{"s", 1}, {"min", 60}, {"h", 3600}, {"d", 86400}};
  command->add_option(name, seconds, what + "; seconds, or with the unit s, min, h or d")
      ->check(CLI::Range(0.0, 1e9))
      ->transform(
          CLI::AsNumberWithUnit(units, CLI::AsNumberWithUnit::Options(CLI::AsNumberWithUnit::CASE_SENSITIVE |
                                                                      CLI::AsNumberWithUnit::UNIT_OPTIONAL)));
}

void AddLooking(CLI::App& app, const Context& context, Arguments& a, Command* chosen) {
  CLI::App* status = Add(app, "status", "Show the daemon, its pool, its runs and what is in flight", chosen,
                         [&] { return a.all ? ShowAllNodes(context) : ShowStatus(context, a.verbose); });
  CLI::Option* verbose = status->add_flag("-v,--verbose", a.verbose, "Show everything, and not one screen");
  status->add_flag("--all-nodes", a.all, "Show each node that shares this daemon's etcd, in one line")
      ->excludes(verbose);
  CLI::App* top = Add(app, "top", "Show who uses the memory and the disk, again and again until Ctrl-C",
                      chosen, [&] { return Top(context, a.once, a.top_interval); });
  top->add_flag("--once", a.once, "Show it once, measured over one interval");
  top->add_option("--interval", a.top_interval, "Seconds between two measurements, 0.1 to 60")
      ->check(CLI::Range(0.1, 60.0))
      ->capture_default_str();
  Add(app, "sessions", "List the connected processes: which ranks they are, and what memory they hold",
      chosen, [&] { return ListSessions(context); });
  CLI::App* list = Add(app, "list", "List committed checkpoints, newest first", chosen,
                       [&] { return List(context, a.run, a.all); });
  list->add_option(
      "RUN", a.run,
      "One run, or a root that no daemon serves, or s3://BUCKET/PREFIX, which is read; default: all runs");
  list->add_flag("--all", a.all, "Include saves in flight and recent failures");
  CLI::App* describe = Add(app, "describe", "Show one checkpoint and its files", chosen, [&] {
    return a.tensors ? DescribeTensors(context, a.name) : Describe(context, a.name);
  });
  describe->add_option("NAME", a.name, "The checkpoint; the tag latest is the newest committed one")
      ->required();
  describe->add_flag("--tensors", a.tensors,
                     "Show the tensors in its files: also of another program's checkpoint, by its path");
  CLI::App* wait = Add(app, "wait", "Wait until a checkpoint has reached a level, at most --timeout (60)",
                       chosen, [&] { return Wait(context, a.name, a.level); });
  wait->add_option("NAME", a.name, "The checkpoint")->required();
  wait->add_option("--level", a.level, "staged, sealed, committed or uploaded")->capture_default_str();
  CLI::App* history = Add(app, "history", "Show the saves, restores and removals of a run, newest first",
                          chosen, [&] { return History(context, a.history); });
  history->add_option("RUN", a.history.run, "One run; default: all runs");
  AddDuration(history, "--since", a.history.since_seconds, "Show only what is not older; default: all");
  history->add_option("-n,--count", a.history.count, "Show at most so many of a run, 1 to 10000")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  AddDuration(history, "--mtbf", a.history.seconds_between_failures,
              "For the advice: how long the job runs between two failures; default: as the history shows");
  Add(app, "why",
      "Say what has become of a checkpoint: why it failed, is kept, is gone, or is not the latest", chosen,
      [&] { return Why(context, a.name); })
      ->add_option("NAME", a.name, "The checkpoint, or the save of that name")
      ->required();
  CLI::App* watch = Add(app, "watch", "Show the progress of saves and restores until Ctrl-C", chosen,
                        [&] { return Watch(context, a.run, a.until_idle, a.interval); });
  watch->add_option("RUN", a.run, "One run; default: all runs");
  watch->add_flag("--until-idle", a.until_idle,
                  "End when nothing is in flight; exit status 1 if a save failed");
  watch->add_option("--interval", a.interval, "Seconds between progress lines, 0.1 to 60")
      ->check(CLI::Range(0.1, 60.0))
      ->capture_default_str();
}

void AddActing(CLI::App& app, const Context& context, Arguments& a, Command* chosen) {
  CLI::App* save = Add(app, "save", "Save files as a checkpoint, and wait until it is committed", chosen,
                       [&] { return SaveFiles(context, a.save); });
  save->add_option("ROOT/TAG", a.save.name, "The checkpoint to be made; no job may run in the root meanwhile")
      ->required();
  save->add_option("FILE", a.save.files,
                   "The files; in the checkpoint each has its last component as its name")
      ->required();
  save->add_option("--step", a.save.step, "The step of the training that the checkpoint is labelled with");
  CLI::App* abort = Add(app, "abort", "End a save that is not committed, for all ranks", chosen,
                        [&] { return Abort(context, a.name, a.message); });
  abort->add_option("NAME", a.name, "The save")->required();
  abort->add_option("--message", a.message, "The reason, which every rank is told");
  CLI::App* drain = Add(app, "drain",
                        "Take no new saves, and wait until a restart of the daemon or the machine loses "
                        "nothing; exit status 5 if --deadline passes before",
                        chosen, [&] { return Drain(context, a.drain); });
  AddDuration(drain, "--deadline", a.drain.deadline_seconds, "How long to wait; default 110s");
  drain->add_option("--message", a.drain.message, "The reason, which status and refused trainers show");
  drain->add_flag("--undo", a.drain.undo, "Take new saves again");
  CLI::App* adopt = Add(app, "adopt", "Take over finished checkpoints of another program, oldest first",
                        chosen, [&] { return Adopt(context, a.run, a.tags, a.allow_removal); });
  adopt->add_option("ROOT", a.run, "The root, or RUN")->required();
  adopt->add_option("TAG", a.tags, "The checkpoints to adopt; default: all finished ones");
  adopt->add_flag("--allow-removal", a.allow_removal, "Adopt also those that retention will evict at once");
  Add(app, "pin", "Protect a checkpoint from eviction and re-saves", chosen,
      [&] { return SetPinned(context, a.name, true); })
      ->add_option("NAME", a.name, "The checkpoint")
      ->required();
  Add(app, "unpin", "Undo pin", chosen, [&] { return SetPinned(context, a.name, false); })
      ->add_option("NAME", a.name, "The checkpoint")
      ->required();
  CLI::App* retention =
      Add(app, "retention", "Show what keeps each checkpoint of a run, or change its policy", chosen,
          [&] { return Retention(context, a.retention); });
  retention->add_option("RUN", a.retention.run, "The run")->required();
  CLI::Option* set = retention->add_option(
      "--set", a.retention.set,
      "From the next commit on, keep this and not what the job asks for: all, or some of last=3, "
      "best=2:loss:min, every=1000 and newer_than=7d, separated by commas");
  retention->add_flag("--clear", a.retention.clear, "Undo --set: keep what the job asks for")->excludes(set);
  retention->add_flag("--dry-run", a.retention.dry_run, "Show what --set would keep, and change nothing");
  CLI::App* remove = Add(app, "delete", "Move a committed checkpoint into the trash", chosen,
                         [&] { return Delete(context, a.name, a.force); });
  remove->add_option("NAME", a.name, "The checkpoint")->required();
  remove->add_flag("--force", a.force, "Delete it although it is pinned, or a pointer file names it");
  Add(app, "trash", "List the checkpoints that were deleted, evicted or replaced and can be brought back",
      chosen, [&] { return ListTrash(context, a.run); })
      ->add_option("RUN", a.run, "The run")
      ->required();
  CLI::App* undelete = Add(app, "undelete", "Bring a checkpoint back from the trash, and pin it", chosen,
                           [&] { return Undelete(context, a.name, a.sequence); });
  undelete->add_option("NAME", a.name, "The checkpoint")->required();
  undelete->add_option("--sequence", a.sequence, "Which of those of the tag; default: the highest")
      ->check(CLI::PositiveNumber);
  CLI::App* resolve =
      Add(app, "resolve", "Say what has become of a save of several nodes that has ended INDETERMINATE",
          chosen, [&] { return ResolveSave(context, a.name, a.there); });
  resolve->add_option("NAME", a.name, "The save, by its checkpoint's name")->required();
  CLI::Option_group* outcome = resolve->add_option_group("outcome");
  outcome->add_flag("--there", a.there, "It is a checkpoint: its directory is at its tag, with a manifest");
  outcome->add_flag("--not-there", a.not_there, "It is none: nothing of it is at its tag");
  outcome->require_option(1);
  Add(app, "prefetch",
      "Read a checkpoint into the daemon's memory, for the job that restores it; at most --timeout (600)",
      chosen, [&] { return Prefetch(context, a.name); })
      ->add_option("NAME", a.name, "The checkpoint; the tag latest is the newest committed one")
      ->required();
  CLI::App* repaired = Add(app, "repaired", "Clear the damage mark of a checkpoint, which is verified before",
                           chosen, [&] { return Repaired(context, a.name, a.unverified); });
  repaired->add_option("NAME", a.name, "The checkpoint")->required();
  repaired->add_flag("--unverified", a.unverified, "Clear the mark without reading the checkpoint");
}

void AddOffline(CLI::App& app, const Context& context, Arguments& a, Command* chosen) {
  CLI::App* doctor =
      Add(app, "doctor", "Probe what a root and this machine can do, and say what to improve; no daemon",
          chosen, [&] { return Doctor(context, a.path, a.nodes); });
  doctor->add_option("ROOT", a.path, "An existing directory")->required();
  CLI::Option* nodes = doctor->add_option(
      "--nodes", a.nodes.count,
      "Try what runs that span nodes need of ROOT, together with the same command on the other nodes at the "
      "same time: how many nodes, 2 to 64. They wait for each other for --timeout (60)");
  nodes->check(CLI::Range(2, 64));
  doctor->add_option("--as", a.nodes.name, "With --nodes: the name of this node; default: that of the host")
      ->needs(nodes);
  Add(app, "new-run",
      "Give a copy of a root that several nodes share a run of its own, after ROOT_COPIED; no daemon", chosen,
      [&] { return NewRun(context, a.path); })
      ->add_option("ROOT", a.path, "The copy, which no job uses")
      ->required();
  CLI::App* upload =
      Add(app, "upload",
          "Send a committed checkpoint to a bucket, going on where an earlier upload has ended; "
          "no daemon",
          chosen, [&] { return Upload(context, a.name, a.url); });
  upload->add_option("ROOT/TAG", a.name, "The checkpoint")->required();
  upload->add_option("URL", a.url, "s3://BUCKET/PREFIX, which will hold it under its tag")->required();
  CLI::App* fetch = Add(app, "fetch", "Bring a checkpoint from a bucket into a root, verified; no daemon",
                        chosen, [&] { return Fetch(context, a.url, a.path); });
  fetch->add_option("URL", a.url, "s3://BUCKET/PREFIX/TAG")->required();
  fetch->add_option("ROOT", a.path, "A directory, which is made if it is missing")->required();
  Add(app, "verify", "Check manifests, part records and all CRCs on disk; a daemon is not needed", chosen,
      [&] { return Verify(context, a.path); })
      ->add_option("ROOT[/TAG]", a.path, "A root, or one checkpoint in it, or s3://BUCKET/PREFIX[/TAG]")
      ->required();
}

// Not in AddOffline: it needs the whole table of commands.
void AddCompletion(CLI::App& app, const Context& context, Arguments& a, Command* chosen) {
  Add(app, "completion", "Print the script that completes command lines of ckptctl in a shell; no daemon",
      chosen,
      [&]() -> absl::StatusOr<ExitCode> {
        *context.out << CompletionScript(app, a.shell);
        return kOk;
      })
      ->add_option("SHELL", a.shell, "bash, zsh or fish")
      ->check(CLI::IsMember(CompletionShells()))
      ->required();
}

// Options are spelled as in NxD's converter, and with hyphens.
void AddNxdZero(CLI::App& convert, const Context& context, Arguments& a, Command* chosen) {
  CLI::App* zero =
      Add(convert, "nxd-zero",
          "The ZeRO-1 optimizer of a tag of NeuronX Distributed: merge its shards, or make others; also "
          "ckptd-nxd-convert",
          chosen, [&] { return ConvertNxdZero(context, a.convert); });
  zero->add_option("--input_dir,--input-dir", a.convert.input_dir,
                   "The tag's directory, which has optim/; it is only read")
      ->required();
  zero->add_option("--output_dir,--output-dir", a.convert.output_dir,
                   "The tag to be made: missing, or an empty directory")
      ->required();
  zero->add_flag("--convert_to_full,--convert-to-full", a.convert.to_full,
                 "Merge the shards into optim/full_tp_rank_…");
  zero->add_flag("--convert_to_sharded,--convert-to-sharded", a.convert.to_sharded,
                 "Make --dp_size shards, from shards or from a merged state");
  zero->add_option("--dp_size,--dp-size", a.convert.dp_size,
                   "The number of data-parallel ranks that will load the result");
  zero->add_option(
          "--num_workers,--num-workers", a.convert.num_workers,
          "Accepted as by NxD's converter, and ignored: reads and writes are in flight together anyway")
      ->check(CLI::PositiveNumber);
  zero->add_flag("--dry-run,--dry_run", a.convert.dry_run,
                 "Check everything and show what would be made, but write nothing");
  zero->add_flag("--force", a.convert.force, "Convert also a tag whose save has not ended");
}

// Options are spelled as in DeepSpeed's zero_to_fp32.py, and with hyphens.
void AddZeroToFp32(CLI::App& convert, const Context& context, Arguments& a, Command* chosen) {
  ZeroToFp32Arguments& zero = a.zero_to_fp32;
  CLI::App* app =
      Add(convert, "zero-to-fp32",
          "The whole weights of a checkpoint of DeepSpeed's ZeRO, stages 1 to 3, as .bin or safetensors",
          chosen, [&] { return ConvertZeroToFp32(context, zero); });
  app->add_option("CHECKPOINT_DIR", zero.checkpoint_dir, "The directory with the tags; it is only read")
      ->required();
  app->add_option("OUTPUT_DIR", zero.output_dir, "The directory to be made: missing, or an empty one");
  app->add_option("-t,--tag", zero.tag, "The tag; default: what the file latest names");
  app->add_option("--max_shard_size,--max-shard-size", zero.max_shard_size,
                  "Bytes of weights in one file: digits with KB, MB, GB or TB; none for one file")
      ->capture_default_str();
  app->add_flag("--safe_serialization,--safe-serialization", zero.safe_serialization,
                "Write safetensors, not .bin (pickle)");
  app->add_flag("--exclude_frozen_parameters,--exclude-frozen-parameters", zero.exclude_frozen_parameters,
                "Leave out parameters that are not trained");
  app->add_option("--dtype", zero.dtype, "Of floating-point weights: float32, float16 or bfloat16")
      ->capture_default_str();
  app->add_flag("-d,--debug", zero.debug, "Accepted as by zero_to_fp32.py, and ignored");
  app->add_flag("--dry-run,--dry_run", zero.dry_run,
                "Check everything and show what would be made, but write nothing");
  app->add_flag("--plan", zero.plan,
                "Print where in the tag's files the bytes of each weight are, as JSON, and write nothing");
}

// Options are spelled as in DeepSpeed's ds_to_universal.py, and with hyphens.
void AddDsToUniversal(CLI::App& convert, const Context& context, Arguments& a, Command* chosen) {
  DsToUniversalArguments& universal = a.universal;
  CLI::App* app = Add(convert, "ds-to-universal",
                      "A tag of DeepSpeed's ZeRO as a universal checkpoint, which any number of ranks loads",
                      chosen, [&] { return ConvertDsToUniversal(context, universal); });
  app->add_option("--input_folder,--input-folder", universal.input_folder,
                  "The tag's directory; it is only read")
      ->required();
  app->add_option(
         "--output_folder,--output-folder", universal.output_folder,
         "The directory to be made: missing, or an empty one. latest_universal beside it will name it")
      ->required();
  app->add_flag("--no_strict,--no-strict", universal.no_strict,
                "Accept patterns of universal_checkpoint_info that no parameter matches");
  app->add_flag("--inject_missing_state,--inject-missing-state", universal.inject_missing_state,
                "Do without universal_checkpoint_info");
  app->add_flag("--dry-run,--dry_run", universal.dry_run,
                "Check everything and show what would be made, but write nothing");
  const std::string ignored = "Accepted as by ds_to_universal.py, and ignored";
  app->add_option("--num_extract_workers,--num-extract-workers", universal.num_extract_workers, ignored);
  app->add_option("--num_merge_workers,--num-merge-workers", universal.num_merge_workers, ignored);
  app->add_flag("--keep_temp_folder,--keep-temp-folder", universal.keep_temp_folder, ignored);
}

// Named as the modes of torch.distributed.checkpoint.format_utils, with hyphens.
CLI::App* AddDcpCommand(CLI::App& convert, const std::string& name, const std::string& what,
                        const std::string& source, const std::string& destination, Arguments& a,
                        Command* chosen, Command command) {
  CLI::App* app = Add(convert, name, what, chosen, std::move(command));
  app->add_option("SOURCE", a.dcp.source, source)->required();
  app->add_option("DESTINATION", a.dcp.destination, destination)->required();
  app->add_flag("--dry-run,--dry_run", a.dcp.dry_run,
                "Check everything and show what would be made, but write nothing");
  return app;
}

void AddDcp(CLI::App& convert, const Context& context, Arguments& a, Command* chosen) {
  const std::string checkpoint = "The checkpoint's directory, which has .metadata; it is only read";
  const std::string directory = "The directory to be made: missing, or an empty one";
  AddDcpCommand(convert, "dcp-to-torch",
                "A checkpoint of PyTorch Distributed Checkpoint as one file, which torch.load reads",
                checkpoint, "The file to be made, which does not exist", a, chosen,
                [&] { return ConvertDcpToTorch(context, a.dcp); });
  AddDcpCommand(convert, "torch-to-dcp",
                "A file of torch.save as a checkpoint of PyTorch Distributed Checkpoint, which any number of "
                "ranks loads",
                "The file, with a dict of state; it is only read", directory, a, chosen,
                [&] { return ConvertTorchToDcp(context, a.dcp); });
  CLI::App* app = AddDcpCommand(
      convert, "dcp-to-safetensors",
      "The tensors of a checkpoint of PyTorch Distributed Checkpoint as safetensors, in "
      "files as HuggingFace's libraries have them",
      checkpoint, directory, a, chosen, [&] { return ConvertDcpToSafetensors(context, a.dcp); });
  app->add_option(
      "--prefix", a.dcp.prefix,
      "Take only tensors whose names begin so, and remove it from their names; for example model.");
  app->add_option("--max-shard-size,--max_shard_size", a.dcp.max_shard_size,
                  "Bytes of tensors in one file: digits with KB, MB, GB or TB; none for one file")
      ->capture_default_str();
  app->add_option("--dtype", a.dcp.dtype,
                  "Of floating-point tensors: float32, float16 or bfloat16; default: as they are");
}

void AddConvert(CLI::App& app, const Context& context, Arguments& a, Command* chosen) {
  CLI::App* convert =
      app.add_subcommand("convert", "Convert checkpoints of other frameworks to other layouts; no daemon");
  convert->require_subcommand(1);
  convert->fallthrough();
  AddNxdZero(*convert, context, a, chosen);
  AddZeroToFp32(*convert, context, a, chosen);
  AddDsToUniversal(*convert, context, a, chosen);
  AddDcp(*convert, context, a, chosen);
}

void AddDebug(CLI::App& app, const Context& context, Arguments& a, Command* chosen) {
  CLI::App* debug = app.add_subcommand("debug", "Gather what a bug report needs; a daemon is not needed");
  debug->require_subcommand(1);
  debug->fallthrough();
  Add(*debug, "dump",
      "Write one text file: versions, status, configuration, log, counters, the process and the machine; no "
      "secrets",
      chosen, [&] { return DebugDump(context, a.output_file); })
      ->add_option("--output_file,--output-file", a.output_file,
                   "The file, which must not exist; default: ckptd-debug-HOST-TIME.txt here");
}

// What to do about an error of `command`, where its message does not say it already.
std::string Hint(const absl::Status& status, ExitCode code, const std::string& command) {
  const std::string reason = ReasonOf(status);
  if (code == kUnreachable) return "; is it running, and is this its socket (--endpoint, $CKPTD_ENDPOINT)?";
  if (reason == "EACCES")
    return "; run this as root, or as a member of the group that owns the socket or directory";
  if (reason == "STORE_DENIED") return "";
  if (absl::IsPermissionDenied(status)) return "; run this as the run's owner or as root";
  if (status.message().find("; ") != absl::string_view::npos) return "";
  if (reason == "ENOENT") return "; check the path";
  if (reason == "NO_CHECKPOINT" && command == "undelete")
    return "; ckptctl trash RUN lists what can be brought back";
  if (reason == "NO_CHECKPOINT" || reason == "UNKNOWN_SAVE")
    return "; ckptctl list --all shows the checkpoints and saves that there are";
  return "";
}

int Report(const absl::Status& status, const std::string& command) {
  const ExitCode code = ExitCodeFor(status);
  const std::string reason = ReasonOf(status);
  std::cerr << "ckptctl: " << OneLine(std::string(status.message())) << Hint(status, code, command)
            << (reason.empty() ? "" : absl::StrCat(" [", reason, "]")) << "\n";
  return code;
}

bool IsSet(const char* variable) {
  const char* const value = std::getenv(variable);
  return value != nullptr && *value != 0;
}

// Whether a descriptor is a terminal that can move its cursor and show colors.
bool IsTerminal(int fd) {
  const char* const terminal = std::getenv("TERM");
  return isatty(fd) != 0 && (terminal == nullptr || std::string_view(terminal) != "dumb");
}

int Main(int argc, char** argv) {
  Context context;
  Arguments arguments;
  Command chosen;
  context.out = &std::cout;
  context.err = &std::cerr;
  CLI::App app("Inspects and controls a ckptd and its checkpoints.", "ckptctl");
  app.footer(kFooter);
  app.require_subcommand(1);
  app.set_version_flag("--version", absl::StrCat("ckptctl ", kVersion));
  app.add_option("--endpoint", context.endpoint,
                 "unix:/path/ckptd.sock; default: $CKPTD_ENDPOINT, or unix:/run/ckptd/ckptd.sock");
  app.add_option("--output", arguments.output, "text or json")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  CLI::Option* timeout = app.add_option("--timeout", arguments.timeout,
                                        "Seconds; for save and wait until the level is reached (60), for "
                                        "watch and adopt in all (no limit), "
                                        "else for the daemon's answer (20)")
                             ->check(CLI::Range(0.0, 86400.0));
  AddLooking(app, context, arguments, &chosen);
  AddActing(app, context, arguments, &chosen);
  AddOffline(app, context, arguments, &chosen);
  AddConvert(app, context, arguments, &chosen);
  AddDebug(app, context, arguments, &chosen);
  AddCompletion(app, context, arguments, &chosen);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version.
    std::cerr << "ckptctl: " << ExplainUsage(app, error, {argv + 1, argv + argc}) << "\n";
    return kUsage;
  }
  context.json = arguments.output == "json";
  if (timeout->count() > 0) context.timeout_seconds = arguments.timeout;
  context.live = IsTerminal(STDOUT_FILENO) && IsTerminal(STDERR_FILENO);
  context.color = IsTerminal(STDOUT_FILENO) && !IsSet("NO_COLOR");
  const absl::StatusOr<ExitCode> result = chosen();
  return result.ok() ? *result : Report(result.status(), app.get_subcommands().front()->get_name());
}

}  // namespace
}  // namespace ckptd::ctl

int main(int argc, char** argv) {
  // Ctrl-C ends `watch` normally. The other commands leave nothing half done.
  std::signal(SIGINT, [](int) { _exit(write(STDOUT_FILENO, "\n", 1) == 1 ? 0 : 1); });
  // gRPC writes lines of its own to stderr. What fails is in the status of the call.
  if (!ckptd::ctl::IsSet("GRPC_VERBOSITY")) gpr_set_log_function([](gpr_log_func_args*) {});
  return ckptd::ctl::Main(argc, argv);
}
