// SPDX-License-Identifier: Apache-2.0
#include "cli/ckpt_command.h"

#include <signal.h>
#include <sys/resource.h>

#include <iostream>
#include <new>

#include "cli/ckpt_work.h"
#include "cli/table.h"

namespace dlrover::cli {
namespace {

constexpr int exit_failure = 1;
constexpr int exit_usage = 2;

/// A checkpoint has a file for each rank, and a file may meet a limit on its size: both are answers, not
/// deaths.
void prepare_process() {
    struct rlimit files;
    if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        (void)::setrlimit(RLIMIT_NOFILE, &files);
    }
    ::signal(SIGXFSZ, SIG_IGN);
}

Status run(const CkptOptions &options) {
    switch (options.action) {
        case CkptAction::show_text:
            std::cout << options.text;
            return {};
        case CkptAction::list:
            return list_places(options);
        case CkptAction::show:
            return show_checkpoint(options);
        case CkptAction::verify:
            return verify_checkpoints(options);
        case CkptAction::remove:
            return remove_checkpoints(options);
        case CkptAction::rollback:
            return roll_back(options);
        case CkptAction::export_to:
            return export_checkpoint(options);
        case CkptAction::import_from:
            return import_checkpoint(options);
    }
    return Status(Code::internal, "a command that nobody carries out");
}

Status run_guarded(const CkptOptions &options) {
    try {
        return run(options);
    } catch (const std::bad_alloc &) {
        return Status(Code::resource_exhausted, "there is not enough memory for this");
    } catch (const std::exception &error) {
        return Status(Code::internal, error.what());
    }
}

}  // namespace

void note(const std::string &sentence) {
    std::cerr << "dlrover: " << printable(sentence) << "\n";
}

int run_ckpt(std::vector<std::string> words) {
    prepare_process();
    auto options = parse_ckpt_options(std::move(words));
    Status status = options.ok() ? run_guarded(*options) : options.take_status();
    std::cout.flush();
    if (status.ok() && !std::cout) status = Status(Code::system, "standard output can not be written");
    if (status.ok()) return 0;
    note(status.message());
    return status.code() == Code::invalid_argument ? exit_usage : exit_failure;
}

}  // namespace dlrover::cli
